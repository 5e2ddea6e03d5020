"""A server that lies: `python -m tests.lying FILE serve s0.toml`, where FILE names the lie.

It is a real daemon, of which single methods are replaced. The daemon reads the lie again at each
use; "" is the truth.
"""

import sys
from dataclasses import replace
from pathlib import Path

from securemedian import cli
from securemedian.common.receipts import Receipt, digest_of
from securemedian.mpc.rounds.run_state import RunState
from securemedian.servers.rounds.requests import Answer, Call, Requests

LIE = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("no lie")

true_result, true_model, true_round = Requests._result, Requests._model, Requests._round


def lie() -> str:
    """Return the present lie."""
    return LIE.read_text() if LIE.exists() else ""


def altered(state: RunState) -> RunState:
    """Return a run with another model."""
    assert state.model is not None
    return replace(state, model=state.model + 1)


def result(requests: Requests, call: Call) -> Answer:
    """Answer with other values, and with another record that only this server has signed."""
    answer = true_result(requests, call)
    if "record" not in answer.fields:
        return answer
    fields, arrays = dict(answer.fields), dict(answer.arrays)
    receipt = Receipt(fields["record"], fields["signatures"])
    record = receipt.record
    if "opened" in arrays and lie() in ("values", "values and record"):
        arrays["opened"] = arrays["opened"] ^ 1
        record = replace(record, opened=digest_of(arrays["opened"]))
    if lie() == "clients":
        left_out = {"its upload reached only s0": record.included[:1]}
        record = replace(record, included=record.included[1:], left_out=left_out)
    if lie() in ("values and record", "clients"):
        signing = requests._rounds._signing
        again = replace(receipt, encoded=record.encode()).signed("s0", signing)
        fields |= {"record": again.encoded, "signatures": dict(again.signatures)}
    if lie() == "form":
        fields["form"], arrays = "share", {"share": next(iter(arrays.values()))} if arrays else {}
    if lie() == "no form":
        del fields["form"]
    if lie() == "no signature":
        fields["signatures"] = {"s0": receipt.signatures["s0"]}
    return Answer(fields, arrays)


def model(requests: Requests, call: Call) -> Answer:
    """Answer with another model."""
    answer = true_model(requests, call)
    if lie() not in ("model", "model and digest"):
        return answer
    return replace(answer, arrays={**answer.arrays, "model": answer.arrays["model"] + 1})


def round_(requests: Requests, call: Call) -> Answer:
    """Answer with the digest of another model than the one that S1 was told."""
    answer = true_round(requests, call)
    if lie() != "model and digest":
        return answer
    entry = requests._rounds.register.find(str(answer.fields["round"]), call.key)
    return Answer({**answer.fields, "start": altered(entry.before).digest.hex()})


if __name__ == "__main__":
    from securemedian.servers.rounds import requests

    for name, function in (("result", result), ("model", model), ("round", round_)):
        requests.OPS[name] = replace(requests.OPS[name], handler=function)
    sys.exit(cli.main(sys.argv[2:]))
