{{- define "servingslo.dynamic_batches.args" }}
{{- range .Values.engines.ranges }}
- --engine-range={{ . }}
{{- end }}
{{- if .Values.engines.keysSecret }}
- --engine-keys-directory=/var/run/engines/keys
{{- end }}
{{- end }}

{{- define "servingslo.dynamic_batches.mounts" }}
            {{- if .Values.engines.keysSecret }}
            - {name: engine-keys, mountPath: /var/run/engines/keys, readOnly: true}
            {{- end }}
{{- end }}

{{- define "servingslo.dynamic_batches.volumes" }}
        {{- if .Values.engines.keysSecret }}
        - name: engine-keys
          secret: {secretName: {{ .Values.engines.keysSecret }}}
        {{- end }}
{{- end }}

{{- define "servingslo.dynamic_batches.egress" }}
    {{- with .Values.engines.ranges }}
    - to:
        {{- range . }}
        - ipBlock: {cidr: {{ . | quote }}}
        {{- end }}
      ports:
        - {protocol: TCP, port: {{ dig "triton" "modelRepositoryPort" 8000 ($.Values.runtimes | default dict) }}}
    {{- end }}
{{- end }}

{{- define "servingslo.dynamic_batches.warnings" }}
{{- if and .Values.batching.apply.enabled .Values.batching.apply.serversOnly (not .Values.engines.ranges) }}
- batching.apply.serversOnly changes limits of running servers, and without engines.ranges it speaks to none.
{{- end }}
{{- end }}
