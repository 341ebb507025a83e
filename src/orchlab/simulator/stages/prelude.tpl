{{- /* Parts that the pod stages share. Put before each of their templates. */ -}}
{{- define "next" -}}
{{- /* (pod, reason, at) the condition that says what happens next and when; a pod-wide deadline that comes first goes before it. */ -}}
{{- $reason := .reason -}}
{{- $at := .at -}}
{{- with .pod.spec.activeDeadlineSeconds -}}
{{- $started := now -}}
{{- with $.pod.status.startTime -}}{{- $started = mustToDate "2006-01-02T15:04:05Z07:00" . -}}{{- end -}}
{{- $deadline := ($started | mustDateModify (printf "+%vs" .)).UTC.Format "2006-01-02T15:04:05.000000Z" -}}
{{- if or (eq $at "") (lt $deadline $at) -}}
{{- $reason = ternary "DeadlineAtBarrier" "DeadlineAt" (eq $reason "AtBarrier") -}}
{{- $at = $deadline -}}
{{- end -}}
{{- end -}}
{{ toJson (dict "type" "orchlab/simulated" "status" "True" "reason" $reason "message" $at "lastTransitionTime" Now) }}
{{- end -}}
{{- define "runs" -}}
{{- /* (pod, from) the condition of a pod whose containers have just begun to run, or which was released from its barrier at `from`. */ -}}
{{- $notes := .pod.metadata.annotations | default dict -}}
{{- $from := now -}}
{{- with .from -}}{{- $from = mustToDate "2006-01-02T15:04:05Z07:00" . -}}{{- end -}}
{{- $reason := "RunsUntilDeleted" -}}
{{- $at := "" -}}
{{- if and (index $notes "orchlab/waits-at") (not (index $notes "orchlab/barrier-released")) -}}
{{- $reason = "AtBarrier" -}}
{{- else -}}
{{- with index $notes "orchlab/real-seconds" -}}
{{- $reason = "RunsUntil" -}}
{{- $at = ($from | mustDateModify (printf "+%vs" .)).UTC.Format "2006-01-02T15:04:05.000000Z" -}}
{{- end -}}
{{- end -}}
{{ template "next" (dict "pod" .pod "reason" $reason "at" $at) }}
{{- end -}}
{{- define "ready" -}}
{{- /* (status, reason, message) the two Ready conditions. */ -}}
{{ toJson (dict "type" "ContainersReady" "status" .status "reason" .reason "message" .message "lastTransitionTime" Now) }},
{{ toJson (dict "type" "Ready" "status" .status "reason" .reason "message" .message "lastTransitionTime" Now) }}
{{- end -}}
{{- define "sidecars-over" -}}
{{- /* (pod) init container statuses with the sidecars ended in good order. */ -}}
{{- $statuses := list -}}
{{- range .status.initContainerStatuses -}}
{{- $status := . -}}
{{- with .state.running -}}
{{- $_ := set $status "state" (dict "terminated" (dict "exitCode" 0 "reason" "Completed" "startedAt" .startedAt "finishedAt" Now)) -}}
{{- $_ := set $status "ready" false -}}
{{- $_ := set $status "started" false -}}
{{- end -}}
{{- $statuses = append $statuses $status -}}
{{- end -}}
{{ toJson $statuses }}
{{- end -}}
{{- define "stopped" -}}
{{- /* (pod) the status of a pod whose running containers were stopped, by SIGTERM or, if they ignored it when deleted, by SIGKILL. */ -}}
{{- $code := 143 -}}
{{- $deaf := eq (index (.metadata.annotations | default dict) "orchlab/on-sigterm" | default "") "ignore" -}}
{{- if and $deaf .metadata.deletionTimestamp -}}{{- $code = 137 -}}{{- end -}}
{{- $now := Now -}}
{{- $statuses := list -}}
{{- range .status.containerStatuses -}}
{{- $status := . -}}
{{- with .state.running -}}
{{- $over := dict "exitCode" $code "reason" "Error" "startedAt" .startedAt "finishedAt" $now -}}
{{- $_ := set $over "containerID" ($status.containerID | default "") -}}
{{- $_ := set $status "state" (dict "terminated" $over) -}}
{{- end -}}
{{- if $status.state.waiting -}}{{- if $status.lastState -}}{{- with $status.lastState.terminated -}}
{{- $_ := set $status "state" (dict "terminated" .) -}}
{{- end -}}{{- end -}}{{- end -}}
{{- $_ := set $status "ready" false -}}
{{- $_ := set $status "started" false -}}
{{- $statuses = append $statuses $status -}}
{{- end }}
{{- if $statuses }}
  containerStatuses: {{ toJson $statuses }}
{{- end }}
{{- if .status.initContainerStatuses }}
  initContainerStatuses: {{ template "sidecars-over" . }}
{{- end }}
  conditions: [
    {{ template "next" (dict "pod" (dict "spec" dict) "reason" "Ended" "at" "") }},
    {type: PodReadyToStartContainers, status: "False", lastTransitionTime: {{ $now | Quote }}},
    {{ template "ready" (dict "status" "False" "reason" "PodFailed" "message" nil) }}
  ]
{{- end -}}
