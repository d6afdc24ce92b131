{{- define "ledgermq.name" -}}
{{- printf "%s-%s" .Release.Name .part | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "ledgermq.selector" -}}
app.kubernetes.io/name: ledgermq
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "ledgermq.labels" -}}
{{ include "ledgermq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "ledgermq.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* What every pod of LedgerMQ may do: nothing but run its program. */ -}}
{{- define "ledgermq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "ledgermq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Settings by name as variables: a dict of `prefix` and `settings`. */ -}}
{{- define "ledgermq.settings" -}}
{{- $prefix := .prefix }}
{{- range $name, $value := .settings }}
- name: {{ $prefix }}{{ upper $name }}
  value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- end -}}

{{- define "ledgermq.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 2
  failureThreshold: 60
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 10
  failureThreshold: 6   # a busy broker is not a dead one
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}
