"""The operator's keys: made once, rotated, lost, broken; and the tokens that come of them."""

import base64
import copy

import pytest

from trainingrun.cluster.api_client import ClusterError
from trainingrun.controller.tokens import KEY_SECRET, MOST_KEYS, Keyring, Tokens


class Store:
    """One Secret, as an API server keeps it."""

    def __init__(self):
        self.found = None
        self.version = 0

    async def secret(self, namespace, name):
        assert (namespace, name) == ("ns", KEY_SECRET)
        return copy.deepcopy(self.found)

    async def create(self, manifest):
        if self.found is not None:
            return False
        self.put(manifest)
        return True

    async def replace(self, manifest):
        if manifest["metadata"]["resourceVersion"] != self.found["metadata"]["resourceVersion"]:
            raise ClusterError("the object has been modified")
        self.put(manifest)

    def put(self, manifest):
        self.version += 1
        metadata = manifest["metadata"] | {"resourceVersion": str(self.version)}
        self.found = copy.deepcopy(manifest) | {"metadata": metadata}

    def set(self, **data: bytes):
        self.put(self.found | {"data": {k: base64.b64encode(v).decode() for k, v in data.items()}})

    def key(self) -> bytes:
        return base64.b64decode(self.found["data"]["key"])


@pytest.fixture
def store():
    return Store()


async def load(store, keyring=None) -> Keyring:
    keyring = keyring or Keyring(store, "ns")
    await keyring.load()
    return keyring


async def test_the_key_is_made_once_and_gives_the_same_tokens_after_a_restart(store):
    first = (await load(store)).tokens.of("uid")
    assert (await load(store)).tokens.of("uid") == first
    assert len(first) == 64
    assert (await load(Store())).tokens.of("uid") != first


def test_runs_have_tokens_of_their_own_and_a_key_s_name_reveals_nothing_of_it():
    tokens = Tokens([b"k" * 32])
    assert tokens.of("one") != tokens.of("two")
    (name,) = tokens.keys
    assert len(name) == 8
    assert name not in (b"k" * 32).hex()


async def test_a_rotated_key_gives_new_tokens_and_those_of_the_former_are_tried(store):
    await load(store)
    old = store.key()
    store.set(former=old)
    tokens = (await load(store)).tokens
    assert tokens.keys == Tokens([store.key(), old]).keys
    assert store.key() != old
    assert tokens.all_of("uid") == Tokens([store.key(), old]).all_of("uid")
    assert tokens.of("uid", Tokens([old]).keys[0]) == Tokens([old]).of("uid")


async def test_a_running_operator_takes_up_a_key_that_was_rotated_by_hand(store):
    keyring = await load(store)
    old = store.key()
    store.set(key=b"n" * 32)
    await load(store, keyring)
    assert keyring.tokens.all_of("uid") == Tokens([b"n" * 32, old]).all_of("uid")


async def test_a_key_that_is_deleted_is_written_again_by_the_operator_that_remembers_it(store):
    keyring = await load(store)
    old, before = store.key(), keyring.tokens.keys
    store.found = None
    await load(store, keyring)
    assert store.key() == old
    assert keyring.tokens.keys == before


async def test_a_key_that_nobody_remembers_gets_a_successor(store):
    before = (await load(store)).tokens.keys
    store.found = None
    assert (await load(store)).tokens.keys != before


@pytest.mark.parametrize(
    "garbage", [pytest.param(b"", id="empty"), pytest.param(b"short", id="short")]
)
async def test_garbage_in_the_secret_heals_and_keeps_the_other_keys(store, garbage, caplog):
    keyring = await load(store)
    remembered = store.key()
    store.set(key=garbage, former=b"f" * 32, noise=b"x")
    fresh = (await load(store)).tokens
    assert fresh.all_of("uid") == Tokens([store.key(), b"f" * 32]).all_of("uid")
    assert "holds no 'key' of 32 bytes" in caplog.text
    store.set(key=garbage)
    await load(store, keyring)
    assert store.key() == remembered, "by the operator that remembers it"


async def test_of_two_operators_that_heal_at_once_the_first_counts(store):
    await load(store)
    store.set(key=b"short")
    seen = await store.secret("ns", KEY_SECRET)
    await load(store)

    class Late(Store):
        async def secret(self, namespace, name):
            return seen

    late = Late()
    late.found = store.found
    with pytest.raises(ClusterError):
        await load(late)


async def test_only_a_few_keys_are_tried(store):
    await load(store)
    store.set(**{f"k{number}": bytes([number]) * 32 for number in range(20)})
    assert len((await load(store)).tokens.keys) == MOST_KEYS
