"""A message to somebody when a run fails or crashes: Prefect calls the address that RLOO_WEBHOOK holds.

The address may hold a secret, so it comes from the environment and lies encrypted in Prefect's database, nowhere else.
"""

import os
from typing import Any
from uuid import UUID

VARIABLE = "RLOO_WEBHOOK"
BLOCK = "rloo-failure"
AUTOMATION = "rloo: a run failed or crashed"
# Slack and Mattermost show "text"; anything else finds its fields.
PAYLOAD = """{
  "text": {{ (flow_run.name ~ " is " ~ flow_run.state.name ~ ". " ~ (flow_run.state.message or "")) | tojson }},
  "flow_run": {{ flow_run.id | string | tojson }},
  "state": {{ flow_run.state.name | tojson }},
  "url": {{ flow_run | ui_url | string | tojson }}
}"""


def set_up_webhook() -> bool:
    """Make or change the automation if RLOO_WEBHOOK is set; what was made earlier stays otherwise.

    Returns:
        Whether an address is set.
    """
    url = os.environ.get(VARIABLE, "")
    if not url:
        return False
    from prefect.automations import Automation
    from prefect.blocks.webhook import Webhook
    from prefect.events.actions import CallWebhook
    from prefect.events.schemas.automations import EventTrigger, Posture
    from pydantic import SecretStr

    block = Webhook(method="POST", url=SecretStr(url), allow_private_urls=True).save(BLOCK, overwrite=True)
    assert isinstance(block, UUID)
    trigger = EventTrigger(
        expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
        match_related={"prefect.resource.role": "flow", "prefect.resource.name": ["rloo", "rloo-study"]},
        for_each={"prefect.resource.id"},
        posture=Posture.Reactive,
        threshold=1,
    )
    automation = Automation(
        name=AUTOMATION, trigger=trigger, actions=[CallWebhook(block_document_id=block, payload=PAYLOAD)]
    )
    try:
        known: Any = Automation.read(name=AUTOMATION)
    except ValueError:
        automation.create()
    else:
        automation.id = known.id
        automation.update()
    return True
