{{- define "trainingrun.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "trainingrun.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "trainingrun.labels" -}}
{{ include "trainingrun.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "trainingrun.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "trainingrun.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.create is false: name an existing account in serviceAccount.name" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "trainingrun.subject" -}}
- kind: ServiceAccount
  name: {{ include "trainingrun.serviceAccountName" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
{{- end -}}

{{- /* RUN_RULES of tests/support/permissions.py; a test compares them. */ -}}
{{- define "trainingrun.runRules" -}}
- apiGroups: [trainingrun.dev]
  resources: [trainingruns]
  verbs: [list, watch, delete]
- apiGroups: [trainingrun.dev]
  resources: [trainingruns/status]
  verbs: [update]
- apiGroups: [trainingrun.dev]
  resources: [trainingdefaults]
  resourceNames: [default]
  verbs: [get]
- apiGroups: [ray.io]
  resources: [rayjobs]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [ray.io]
  resources: [rayclusters]
  verbs: [list, watch, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, delete]
# Never get or list: what users keep in Secrets stays unread.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- if .Values.notifications.allowedHosts }}
# But those with the addresses of spec.notify.
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ toJson .Values.notifications.secretNames }}
  verbs: [get]
{{- end }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- if .Values.rbac.kueueReads }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list]
{{- end }}
{{- end -}}
