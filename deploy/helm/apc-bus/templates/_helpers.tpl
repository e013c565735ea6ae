{{- define "apc.name" -}}
{{- printf "%s-%s" .root.Release.Name .part | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "apc.labels" -}}
{{ include "apc.selector" . }}
app.kubernetes.io/part-of: apc-bus
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "apc.selector" -}}
app.kubernetes.io/name: apc-bus
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "apc.image" -}}
{{- $image := .image | default .root.Values.image -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{/* What every pod is: a user without rights, a root that cannot be written, no token of Kubernetes. */}}
{{- define "apc.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- if not .hook }}
serviceAccountName: {{ .root.Values.existingServiceAccount | default (printf "%s-apc" .root.Release.Name) }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- if not (or .hook .kind) }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "apc.selector" . | nindent 8 }}
{{- end }}
{{- end -}}

{{/*
Annotations of a service's pods. The sum over its Secrets, as they are in the cluster at an install or upgrade, makes an
upgrade restart the pods whose Secret was rotated; who may not read Secrets, and `helm template`, make none.
*/}}
{{- define "apc.annotations" -}}
{{- $names := concat (list .secret .s3 .root.Values.broker.caSecret .root.Values.database.caSecret) (.others | default list) | compact | uniq -}}
{{- $sums := list -}}
{{- range $names -}}
{{- with lookup "v1" "Secret" $.root.Release.Namespace . -}}
{{- $sums = append $sums (toJson .data | sha256sum) -}}
{{- end -}}
{{- end -}}
{{- $all := merge (dict) .root.Values.podAnnotations -}}
{{- if $sums }}{{ $_ := set $all "apc-bus/secrets" (join "" $sums | sha256sum) }}{{ end -}}
{{- with $all -}}
annotations: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "apc.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "apc.name" . }}
  labels: {{- include "apc.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "apc.selector" . | nindent 6 }}
{{- end -}}

{{- define "apc.container" -}}
image: {{ include "apc.image" . | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  privileged: false
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* Secrets are files: /run/secrets/apc_database_url is APC_DATABASE_URL. Only the named keys are mounted. */}}
{{- define "apc.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: data, mountPath: /var/lib/apc}
{{- if .secret }}
- {name: secrets, mountPath: /run/secrets, readOnly: true}
{{- end }}
{{- if .root.Values.broker.caSecret }}
- {name: broker-ca, mountPath: /etc/apc/broker, readOnly: true}
{{- end }}
{{- if .root.Values.database.caSecret }}
- {name: database-ca, mountPath: /etc/apc/database, readOnly: true}
{{- end }}
{{- with .root.Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "apc.volumes" -}}
- {name: tmp, emptyDir: {sizeLimit: 1Gi}}
- {name: data, emptyDir: {sizeLimit: {{ .space | default "1Gi" }}}}
{{- if .secret }}
- name: secrets
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    items:
      {{- range .keys }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- with .root.Values.broker.caSecret }}
- name: broker-ca
  secret: {secretName: {{ . }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- with .root.Values.database.caSecret }}
- name: database-ca
  secret: {secretName: {{ . }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "apc.env" -}}
- {name: APC_SHARDS, value: {{ .root.Values.shards | quote }}}
- {name: APC_DATA_DIR, value: /var/lib/apc}
{{- if .root.Values.broker.caSecret }}
- {name: APC_AMQP_CA_FILE, value: /etc/apc/broker/ca.crt}
{{- end }}
{{- if .root.Values.database.caSecret }}
- {name: APC_DATABASE_CA_FILE, value: /etc/apc/database/ca.crt}
{{- end }}
{{- range $name, $value := merge (dict) (.settings | default dict) .root.Values.settings }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- with .root.Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "apc.s3" -}}
{{- with .root.Values.artifacts.endpoint }}
- {name: AWS_ENDPOINT_URL, value: {{ . | quote }}}
{{- end }}
- {name: AWS_REGION, value: {{ .root.Values.artifacts.region | quote }}}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ .s3 }}, key: aws_access_key_id}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ .s3 }}, key: aws_secret_access_key}}
{{- end -}}

{{/* For those who read released segments of the log. */}}
{{- define "apc.archive" -}}
{{- with .root.Values.archiver -}}
{{- if and .enabled .readSecret -}}
- {name: APC_ARCHIVE_URL, value: {{ .url | quote }}}
{{ include "apc.s3" (dict "root" $.root "s3" .readSecret) }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "apc.health" -}}
- {name: APC_HEALTH_PORT, value: "8080"}
- {name: APC_HEALTH_HOST, value: 0.0.0.0}
{{- end -}}

{{/* ready: the page that says whether a pod counts as available. A standby orchestrator never holds a shard, so it is asked for life. */}}
{{- define "apc.probes" -}}
ports:
  - {name: health, containerPort: {{ .port | default 8080 }}}
  {{- if .https }}
  - {name: https, containerPort: 8443}
  {{- end }}
startupProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: {{ .ready }}, port: health}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}
