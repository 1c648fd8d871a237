"""Events as a real API server keeps them: an object for each note, a series of repetitions."""

import asyncio

import kubernetes

from servingslo.adapters.kubernetes.api.client import connect
from servingslo.adapters.kubernetes.events import KubernetesEvents
from servingslo.adapters.kubernetes.leases import post_warning
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.explain.events import Event, EventType
from servingslo.reasons import Reason
from servingslo_lab.rig.cluster import Rig

NOON_SECONDS = 1_795_262_400.0
LEASE = "servingslo-acting-operator"


def test_a_repeated_event_is_a_series_and_another_note_an_event_of_its_own(
    rig: Rig, namespace: str
) -> None:
    """Also after a restart; and `kubectl describe` finds them by what they are about."""
    ref = ResourceRef(namespace=namespace, name="llama-chat", uid="u-1")

    def scaled(note: str) -> Event:
        return Event(
            type=EventType.NORMAL,
            reason=Reason.SCALED,
            message=note,
            key="replicas",
            every_time=True,
        )

    async def post() -> None:
        client = await connect(kubeconfig=str(rig.admin_kubeconfig))
        events = KubernetesEvents(client)
        for number, note in enumerate(["3 -> 5", "3 -> 5", "3 -> 5", "5 -> 6"]):
            await events.post(ref, scaled(note), NOON_SECONDS + number)
        restarted = KubernetesEvents(client)
        for note in "3 -> 5", "5 -> 6":
            await restarted.post(ref, scaled(note), NOON_SECONDS + 60)
        await client.close()

    asyncio.run(post())
    kept = kubernetes.client.EventsV1Api(rig.api_client()).list_namespaced_event(namespace).items
    series = {one.note: (one.series.count, one.series.last_observed_time) for one in kept}
    assert {note: count for note, (count, _) in series.items()} == {"3 -> 5": 4, "5 -> 6": 2}
    assert series["5 -> 6"][1].timestamp() == NOON_SECONDS + 60
    assert {one.event_time.timestamp() for one in kept} == {NOON_SECONDS, NOON_SECONDS + 3}
    described = kubernetes.client.CoreV1Api(rig.api_client()).list_namespaced_event(
        namespace, field_selector="involvedObject.kind=ServingSLO,involvedObject.uid=u-1"
    )
    assert {one.message for one in described.items} == set(series)


def test_an_event_about_a_lease_is_kept(rig: Rig, namespace: str) -> None:
    """Who acts in a namespace instead is found there, by the Lease."""

    async def post() -> None:
        client = await connect(kubeconfig=str(rig.admin_kubeconfig))
        await post_warning(client, namespace, LEASE, Reason.ANOTHER_OPERATOR, "a acts")
        await client.close()

    asyncio.run(post())
    described = kubernetes.client.CoreV1Api(rig.api_client()).list_namespaced_event(
        namespace, field_selector=f"involvedObject.kind=Lease,involvedObject.name={LEASE}"
    )
    assert [(one.reason, one.message) for one in described.items] == [("AnotherOperator", "a acts")]
