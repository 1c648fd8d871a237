{{- /* What no schema can say in words: values that Helm would take and the cluster would not. */ -}}
{{- define "servingslo.checks" -}}
{{- with .Values.leaderElection }}
{{- if gt (float64 .renewSeconds) (subf (float64 .leaseSeconds) 2.0) }}
{{- fail (printf "leaderElection.renewSeconds: %v is not allowed; allowed: above 1, at most %v (2 below leaseSeconds)" .renewSeconds (subf (float64 .leaseSeconds) 2.0)) }}
{{- end }}
{{- if gt (float64 .retrySeconds) (divf (float64 .renewSeconds) 2.0) }}
{{- fail (printf "leaderElection.retrySeconds: %v is not allowed; allowed: 0.5 to %v (half of renewSeconds)" .retrySeconds (divf (float64 .renewSeconds) 2.0)) }}
{{- end }}
{{- end }}
{{- /* The grammar of an image's name: github.com/distribution/reference. Upper case is a placeholder. */ -}}
{{- $host := "(\\[[0-9a-fA-F:]+\\]|[a-z0-9]([a-z0-9.-]*[a-z0-9])?)(:[0-9]+)?" }}
{{- $path := "[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*" }}
{{- if not (regexMatch (printf "^(%s/)?%s$" $host $path) .Values.image.repository) }}
{{- fail (printf "image.repository: %s is not allowed; allowed: an image of your registry in lower case, without tag or digest" .Values.image.repository) }}
{{- end }}
{{- $registries := dict "image.registry" (.Values.image.registry | default "") "global.imageRegistry" ((.Values.global).imageRegistry | default "") }}
{{- range $name, $registry := $registries }}
{{- if and $registry (not (regexMatch (printf "^%s(/%s)?/?$" $host $path) $registry)) }}
{{- fail (printf "%s: %s is not allowed; allowed: the host of a registry in lower case, with a port and a path if it has them" $name $registry) }}
{{- end }}
{{- end }}
{{- if not (regexMatch "^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$" .Values.image.tag) }}
{{- fail (printf "image.tag: %q is not allowed; allowed: letters, digits, _, . and -, at most 128" .Values.image.tag) }}
{{- end }}
{{- with .Values.prometheus }}
{{- if regexMatch "[\\s?#]|/(graph|api/v1(/query(_range)?)?)/?$" .url }}
{{- fail (printf "prometheus.url: %s is not allowed; allowed: an address without blank, query, /graph and /api/v1" .url) }}
{{- end }}
{{- $one := `\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(=|!=|=~|!~)\s*"([^"\\]|\\.)*"\s*` }}
{{- if regexMatch (printf `^(%s,)*\s*__name__\s*[=!]` $one) .matchers }}
{{- fail (printf "prometheus.matchers: %s is not allowed; allowed: matchers of labels, not of __name__" .matchers) }}
{{- end }}
{{- if and .basicAuthSecret (or .bearerTokenSecret .bearerTokenFile) }}
{{- fail (printf "prometheus.basicAuthSecret: %s is not allowed; allowed: '' with a bearer token, since one request has one kind of credentials" .basicAuthSecret) }}
{{- end }}
{{- end }}
{{- with .Values.gateway }}
{{- if and .reporter (not (has .profile (list "istio" "none"))) }}
{{- fail (printf "gateway.reporter: %s is not allowed; allowed: '' with profile %s" .reporter .profile) }}
{{- end }}
{{- if and .pattern (not (has .profile (list "envoy-gateway" "none"))) }}
{{- fail (printf "gateway.pattern: %s is not allowed; allowed: '' with profile %s" .pattern .profile) }}
{{- end }}
{{- end }}
{{- $memory := dig "limits" "memory" "" .Values.resources | toString }}
{{- if and $memory (lt (include "servingslo.mebibytes" $memory | float64) 128.0) }}
{{- fail (printf "resources.limits.memory: %s is not allowed; allowed: 128Mi or more, or nothing: it follows from expectedPods" $memory) }}
{{- end }}
{{- $limit := dig "limits" "memory" "" (include "servingslo.resources" . | fromYaml) | toString }}
{{- $asked := dig "requests" "memory" "0" .Values.resources | toString }}
{{- if gt (include "servingslo.mebibytes" $asked | float64) (include "servingslo.mebibytes" $limit | float64) }}
{{- fail (printf "resources.requests.memory: %s is not allowed; allowed: at most the limit, %s" $asked $limit) }}
{{- end }}
{{- if and (eq (toString (.Values.serviceAccount).create) "false") (not .Values.serviceAccount.name) }}
{{- fail "serviceAccount.name: nothing is not allowed; allowed: the name of an account that exists, with create: false" }}
{{- end }}
{{- end }}
{{- /* MiB of a quantity such as 512Mi, 1.5G or 134217728. */ -}}
{{- define "servingslo.mebibytes" -}}
{{- $factors := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 }}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?(e[+]?[0-9]+)?" . }}
{{- $unit := trimPrefix $number . }}
{{- if not (and $number (hasKey $factors $unit)) }}
{{- fail (printf "resources: memory of %s is not allowed; allowed: a quantity such as 512Mi" .) }}
{{- end }}
{{- divf (mulf (float64 $number) (get $factors $unit)) 1048576.0 }}
{{- end }}
{{- /* What is allowed and has no effect, or may have another one than was meant; a line each. */ -}}
{{- define "servingslo.warnings" -}}
{{- if and (eq .Values.image.repository "servingslo/operator") (not .Values.image.registry) (not (.Values.global).imageRegistry) }}
- image.repository is the default, which no registry publishes: pods start only on nodes that have the image.
{{- end }}
{{- if .Values.networkPolicy.enabled }}
{{- $url := urlParse .Values.prometheus.url }}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (ternary "443" "80" (eq $url.scheme "https")) }}
{{- if not (has $port (toStrings .Values.networkPolicy.egressPorts)) }}
- networkPolicy.egressPorts lacks {{ $port }}, the port of prometheus.url: nothing is read unless the Service leads to pods on one of {{ join ", " .Values.networkPolicy.egressPorts }}.
{{- end }}
{{- end }}
{{- $apply := .Values.batching.apply }}
{{- if not $apply.enabled }}
{{- if $apply.serversOnly }}
- batching.apply.serversOnly has no effect without batching.apply.enabled.
{{- end }}
{{- end }}
{{- include "servingslo.features.warnings" . }}
{{- if and (has "EngineArguments" .Values.admission.kinds) (or (not $apply.enabled) $apply.serversOnly) }}
- admission.kinds: EngineArguments has no effect without batching.apply.enabled, and with serversOnly.
{{- end }}
{{- $memory := dig "limits" "memory" "" .Values.resources | toString }}
{{- $needed := add 256 (div (int .Values.expectedPods) 4) }}
{{- if and $memory (lt (include "servingslo.mebibytes" $memory | float64) (float64 $needed)) }}
- resources.limits.memory is {{ $memory }}; {{ .Values.expectedPods }} engine pods (expectedPods) need {{ $needed }}Mi.
{{- end }}
{{- if eq (toString (.Values.rbac).create) "false" }}
- rbac.create is off: without the rights of docs/how-to/install.md, bound to {{ include "servingslo.serviceAccount" . }}, nothing works.
{{- end }}
{{- end }}
