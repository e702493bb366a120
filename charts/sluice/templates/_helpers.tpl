{{- define "sluice.name" -}}
{{- if contains "sluice" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-sluice" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "sluice.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "sluice.name" .) }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice-controller
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: controller
app.kubernetes.io/part-of: sluice
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* An image by digest, else by tag, else by the chart's version: (list root image) */ -}}
{{- define "sluice.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}{{ else }}{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}
