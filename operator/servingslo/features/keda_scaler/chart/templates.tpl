{{- define "servingslo.keda_scaler.args" }}
{{- with .Values.keda.externalScaler }}
{{- if .enabled }}
{{- if gt (include "servingslo.deciders" $ | int) 1 }}
{{- fail "keda.externalScaler.enabled: true is not allowed; allowed: false if several pods decide" }}
{{- end }}
- --keda-scaler-host=0.0.0.0
- --keda-scaler-port={{ .port }}
{{- if .tlsSecret }}
- --keda-scaler-certificate-file=/var/run/keda/tls/tls.crt
- --keda-scaler-key-file=/var/run/keda/tls/tls.key
{{- else if not .plainText }}
{{- fail "keda.externalScaler.tlsSecret: nothing is not allowed; allowed: the name of a Secret, or nothing with plainText: true" }}
{{- else }}
- --keda-scaler-plain-text=true
{{- end }}
{{- if .clientCASecret }}
{{- if not .tlsSecret }}
{{- fail (printf "keda.externalScaler.clientCASecret: %s is not allowed; allowed: '' without tlsSecret: plain text asks no client for a certificate" .clientCASecret) }}
{{- end }}
- --keda-scaler-client-ca-file=/var/run/keda/client-ca/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "servingslo.keda_scaler.ports" }}
{{- with .Values.keda.externalScaler }}
            {{- if .enabled }}
            - {name: keda, containerPort: {{ .port }}}
            {{- end }}
            {{- end }}
{{- end }}

{{- define "servingslo.keda_scaler.mounts" }}
{{- with .Values.keda.externalScaler }}
            {{- if and .enabled .tlsSecret }}
            - {name: keda-tls, mountPath: /var/run/keda/tls, readOnly: true}
            {{- end }}
            {{- if and .enabled .clientCASecret }}
            - {name: keda-client-ca, mountPath: /var/run/keda/client-ca, readOnly: true}
            {{- end }}
            {{- end }}
{{- end }}

{{- define "servingslo.keda_scaler.volumes" }}
{{- with .Values.keda.externalScaler }}
        {{- if and .enabled .tlsSecret }}
        - name: keda-tls
          secret: {secretName: {{ .tlsSecret }}}
        {{- end }}
        {{- if and .enabled .clientCASecret }}
        - name: keda-client-ca
          secret: {secretName: {{ .clientCASecret }}}
        {{- end }}
        {{- end }}
{{- end }}

{{- define "servingslo.keda_scaler.ingress" }}
{{- if .Values.keda.externalScaler.enabled }}
    - ports:
        - {protocol: TCP, port: keda}
    {{- end }}
{{- end }}

{{- define "servingslo.keda_scaler.objects" }}
{{- if .Values.keda.externalScaler.enabled }}
---
# Headless, so that KEDA's client tries each pod: the leader alone answers.
apiVersion: v1
kind: Service
metadata:
  name: {{ include "servingslo.name" . }}-keda
  namespace: {{ .Release.Namespace }}
  labels: {{- include "servingslo.labels" . | nindent 4 }}
spec:
  clusterIP: None
  selector: {{- include "servingslo.selector" . | nindent 4 }}
  ports:
    - {name: keda, port: {{ .Values.keda.externalScaler.port }}, targetPort: keda}
{{- end }}
{{- end }}
