"""Flower starts our nodes: a ClientApp for the sites, and a ServerApp that waits for them.

    [tool.flwr.app.components]
    serverapp = "decor.doors.flower:server"
    clientapp = "decor.doors.flower:client"

    [tool.flwr.app.config]
    federation = "tumour"
    sites = 3

The run names a federation. What that means at a site is in the site's own file, which the option
`--node-config 'decor="decor.toml"'` of its SuperNode names. Models go from node to node; Flower's
messages ask for the node and carry how it has ended. When they stop to come, the node stops.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from decor import checks
from decor.errors import DecorError, InputError, require
from decor.federation.exit_codes import DONE, INCOMPLETE, NEEDS_A_PERSON

from .lease import Lease
from .site_node import public_facts

require("flwr", "doors", "launching nodes in Flower")

from flwr.app import ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.common.constant import ErrorCode  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

LEASE = 120.0
"""Seconds without a message after which a site stops its node."""
_LOG = logging.getLogger("flwr")
_RECORD = "decor"
_POLL = 1.0
_FOR_GOOD = (
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION,
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    ErrorCode.MOD_FAILED_PRECONDITION,
    ErrorCode.INVALID_FAB,
)

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Has the node run of the site that `--node-config 'decor="FILE"'` names.

    Args:
        message: The server's; for how many seconds more.
        context: Of the SuperNode, and of the run.
    """
    site = context.node_config.get("decor")
    if isinstance(site, str):
        return answer(message, context, Path(site))
    _LOG.error("no file for DECOR: start this SuperNode with --node-config 'decor=\"FILE\"'")
    return _reply(message, public_facts(NEEDS_A_PERSON))


def answer(message: Message, context: Context, site: Path) -> Message:
    """Has a site's node run for some time more; for a ClientApp of one's own.

    Args:
        message: What is answered.
        context: Its `run_config["federation"]` is the name of a table in the site's file.
        site: The site's own file.

    Returns:
        What is public of how the node has ended, in the ConfigRecord "decor"; nothing in it while
        the node is at work.
    """
    seconds = float(message.content[_RECORD]["seconds"])
    try:
        lease = Lease(site, str(context.run_config.get("federation")))
        public = lease.renew(context.run_id, seconds, _LOG.info)
    except (InputError, OSError) as problem:
        # the sentence stays at the site; Flower would send that of an exception
        _LOG.error("%s", problem)
        public = public_facts(NEEDS_A_PERSON)
    return _reply(message, public or {})


def _reply(message: Message, public: dict[str, Any]) -> Message:
    return Message(RecordDict({_RECORD: ConfigRecord(public)}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Has the nodes of all sites run until each has ended.

    A site that fails ends nobody else's node: they go on as their federation file says.

    Args:
        grid: The SuperNodes.
        context: Its `run_config` has `sites`, the number of sites, and perhaps `lease`.

    Raises:
        DecorError: If a site has no final model; after the others have ended.
    """
    config = context.run_config
    sites, seconds = checks.count("sites", config.get("sites")), float(config.get("lease", LEASE))
    ended: dict[int, bool] = {}
    asked: dict[str, int] = {}
    while len(ended) < sites:
        # as they come: nodes wait for each other; a SuperNode that is started again is a new one
        busy = {*ended, *asked.values()}
        nodes = [node for node in sorted(grid.get_node_ids()) if node not in busy]
        record = RecordDict({_RECORD: ConfigRecord({"seconds": seconds})})
        messages = [Message(record, node, "train") for node in nodes]
        asked.update(zip(grid.push_messages(messages), nodes, strict=True))
        for reply in grid.pull_messages(list(asked)) if asked else ():
            node = asked.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                _LOG.warning("site %s: no answer: %s", node, reply.error.reason)
                # others may pass, such as a connection that is lost: the site is asked again
                if reply.error.code in _FOR_GOOD:
                    ended[node] = False
            elif public := dict(reply.content[_RECORD]):
                _LOG.info("site %s: %s", node, public)
                ended[node] = public["code"] in (DONE, INCOMPLETE)
        time.sleep(_POLL)
    if left := sites - sum(ended.values()):
        raise DecorError(f"{left} of {sites} sites have no final model; see the log")
