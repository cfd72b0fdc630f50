"use strict";
// Replaces what is live on the page. What is open, scrolled to, selected or written stays.

const scrolls = (within) => [...within.querySelectorAll("pre, .wide")];
const folds = (within) => [...within.querySelectorAll("details")];
const label = (fold) => fold.firstElementChild.textContent;

function replace(live, next) {
  const open = new Map(folds(live).map((fold) => [label(fold), fold.open]));
  const places = scrolls(live).map((each) => [
    each.scrollLeft,
    each.scrollTop + each.clientHeight >= each.scrollHeight - 4 ? 1e9 : each.scrollTop,
  ]);
  const focused = live.contains(document.activeElement) && document.activeElement.href;
  live.replaceChildren(...next.childNodes);
  for (const fold of folds(live)) fold.open = open.get(label(fold)) ?? fold.open;
  scrolls(live).forEach((each, index) => places[index] && each.scrollTo(...places[index]));
  if (focused) [...live.querySelectorAll("a")].find((each) => each.href === focused)?.focus();
}

async function renew() {
  const away = document.getElementById("away"), live = document.getElementById("live");
  try {
    if (!document.hidden && getSelection().type !== "Range") {
      const answer = await fetch(location.href);
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      replace(live, next.getElementById("live"));
      document.title = next.title;
      document.body.dataset.every = next.body.dataset.every;
      away.hidden = true;
    }
  } catch {
    away.hidden = false;
  }
  setTimeout(renew, document.body.dataset.every * 1000);
}

for (const each of document.querySelectorAll("pre.end")) each.scrollTo(0, 1e9);
setTimeout(renew, document.body.dataset.every * 1000);
