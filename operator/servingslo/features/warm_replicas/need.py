"""The replicas on call, as a rule of the count."""

from servingslo.features.warm_replicas.mix import warm_need

PART = warm_need
