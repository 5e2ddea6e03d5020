"""The filter for a client: it submits the trained weights in shares, and NVFlare gets the rest."""

import copy
import re
from pathlib import Path
from typing import Any

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.filter import FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.job_config.defs import FilterType

from securemedian.clients.config import ClientConfig
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.nvflare import tasks
from securemedian.plugins.rounds import check, local_part, same_form, submit

# a site's own client.toml, or a link to it, in the folder `local` of its workspace
CONFIG_FILE = "securemedian.toml"
# training, and the evaluation of sites' own models by each other, which this filter refuses
_TASKS = (AppConstants.TASK_TRAIN, AppConstants.TASK_SUBMIT_MODEL)


class SecureMedianFilter(DXOFilter):
    """A filter that hands an update to S0 and S1 in shares, and leaves a token in its place.

    It belongs into both chains of a client. In the task-data chain it gives the model of a task
    its usual form back. In the task-result chain, the last of its filters, it takes out the
    weights or weight differences, after filters such as those for differential privacy. Other
    results go through, and must have no arrays.

    Before anything is trained, raises ConfigError for a wrong or missing client.toml or round, and
    PolicyRefused for a round that this client's own policy refuses. Raises InputError for an update
    of another form, or NaN, and what `Client.submit` raises. NVFlare
    writes the text to the site's log and sends the server a code.
    """

    def __init__(self, config: str = "") -> None:
        """Name the client.toml of simulated sites; `{client}` stands for the site's number."""
        super().__init__(tasks.KINDS, tasks.KINDS)
        # NVFlare writes an argument into the job from the attribute of its name
        self.config = config

    def add_to_fed_job(self, job: Any, ctx: Any, **options: Any) -> None:
        """Add the filter to both chains of a job, for the named tasks or those with weights."""
        # sites run the package that is installed there, and no copy of it in the job
        job.set_app_packages([*job.job.app_packages, __name__.partition(".")[0]])
        named = options.get("tasks")
        # one by one, because NVFlare refuses sets of tasks that overlap with another filter's
        for chosen in [named] if named else [[task] for task in _TASKS]:
            for chain in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
                job.add_filter(self, chain, chosen, ctx)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Filter a task on its way in, or the result of one on its way out."""
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            self._receive(shareable, fl_ctx)
            return shareable
        result = super().process(shareable, fl_ctx)
        if found := list(tasks.arrays_in(result)):
            raise InputError(
                "arrays that must not leave this site are in the result of "
                f"{fl_ctx.get_prop(FLContextKey.TASK_NAME)!r}: {found[0]}; return only the "
                "weights of a round as arrays"
            )
        return result

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Submit weights, and return a token."""
        if tasks.ROUND in dxo.data:
            # the site has a filter of its own before that of the job
            return None
        received = fl_ctx.get_prop(tasks.ROUND)
        if received is None:
            raise _no_round(fl_ctx)
        sent, round_id, keep_local = received
        trained = dxo.data
        if dxo.data_kind == DataKind.WEIGHT_DIFF:
            trained = {name: _after(sent.get(name), change) for name, change in trained.items()}
        update = same_form(trained, sent)
        if round_id:
            submit(self._client_config(fl_ctx), update, round_id, keep_local)
        else:
            self.log_warning(fl_ctx, "securemedian: no round could be opened for this update")
        # for the tasks to come, whose filters are other objects
        local = local_part(update, keep_local)
        fl_ctx.set_prop(tasks.LOCAL, local, private=True, sticky=True)
        return tasks.token(dxo, round_id)

    def _receive(self, task: Shareable, fl_ctx: FLContext) -> None:
        """Give the model of a task its usual form back, and note the round and the model."""
        if received := tasks.receive(task, fl_ctx.get_prop(tasks.LOCAL) or {}):
            # mistakes are found before hours of training
            check(self._client_config(fl_ctx), received[1])
            # a copy, because the training may change the model in place
            fl_ctx.set_prop(tasks.ROUND, copy.deepcopy(received), private=True, sticky=False)
            return
        known = fl_ctx.get_prop(tasks.ROUND) is not None
        if not known and fl_ctx.get_prop(FLContextKey.TASK_NAME) == AppConstants.TASK_TRAIN:
            raise _no_round(fl_ctx)

    def _client_config(self, fl_ctx: FLContext) -> ClientConfig:
        """Return this site's own configuration, or the one the job names. Raises ConfigError."""
        own = Path(fl_ctx.get_workspace().get_file_path_in_site_config(CONFIG_FILE))
        if own.exists():
            return ClientConfig.load(own.resolve())
        site = fl_ctx.get_identity_name()
        if not self.config:
            raise ConfigError(
                f"this site does not name its own client.toml: {site!r}; put it, or a link to "
                f"it, at {own}"
            )
        number = re.search(r"\d+$", site)
        if "{client}" in self.config and not number:
            raise ConfigError(
                f"{site!r} has no number at its end to put into {{client}}: the job's "
                f"client.toml is {self.config}; put this site's own, or a link to it, at {own}"
            )
        named = self.config.replace("{client}", number[0]) if number else self.config
        return ClientConfig.load(Path(named).expanduser())


def _after(sent: Any, change: Any) -> Any:
    """Return the weight to which a difference leads. One of another form is refused later."""
    if sent is None or sent.shape != change.shape:
        return change
    return (sent + change).astype(sent.dtype)


def _no_round(fl_ctx: FLContext) -> ConfigError:
    return ConfigError(
        f"the task names no round to submit to: {fl_ctx.get_prop(FLContextKey.TASK_NAME)}; use "
        "the aggregator SecureMedian at the server"
    )
