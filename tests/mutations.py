"""Changes of single lines that a test must notice: `python -m tests.mutations [--only N]`.

Each entry of `MUTATIONS` takes a guard out of the product. The product is copied to a temporary
folder, and there the entry's test has to fail with the change. `test_architecture` holds that the
table fits the product: each text that it quotes is in its file exactly once.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# of one test
LIMIT_S = 300
_LEFT_OUT = shutil.ignore_patterns(".*", "*.pyc", "build", "site", "*.egg-info")


class Change(NamedTuple):
    """A part of a line, and what stands there instead."""

    file: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """Change the file below `root`. Raises ValueError unless the text is there exactly once."""
        path = root / self.file
        text = path.read_text("utf-8")
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} has {found} times {self.old!r}: mend the table")
        path.write_text(text.replace(self.old, self.new), "utf-8")


_CHANNEL, _BASE = "mpc/protocols/channel.py", "mpc/rounds/methods/base.py"
_MEAN, _NORMS = "mpc/rounds/methods/mean.py", "mpc/rounds/methods/norms.py"
_MEMBERS, _STEP = "servers/machine/members.py", "servers/machine/step.py"
_TABLE, _REGISTER = "servers/machine/table.py", "servers/rounds/register.py"
_POLICY, _JOURNAL = "common/policy.py", "clients/journal.py"
_SHARING, _SEALED = "clients/sharing.py", "servers/network/sealed.py"
_OPENER, _BISECTING = "mpc/protocols/audit/opening.py", "mpc/rounds/bisecting.py"
_BISECT = "mpc/protocols/bisect.py"

# By the test that sees it: its file, and words of its name.
MUTATIONS = {
    # issue 35: both commit, each to its own words at its own place, before either opens
    "openings another_opening_is": Change(_CHANNEL, "self.check_opening(committed, ", "print("),
    "openings the_others_commitment": Change(_CHANNEL, "label, number, at)", "label, 0, at)"),
    "openings an_old_commitment": Change(_CHANNEL, "label, number, at)", "label, number, 0)"),
    "output_shares commitments_hide": Change(
        "mpc/rounds/methods/reveal.py", "randomness.words(NONCE_WORDS)", "mine[:0]"
    ),
    "equality another_message": Change(
        "mpc/protocols/audit/equality.py", 'PeerDeviated(f"{differ}: {error}") from', "error from"
    ),
    # security malicious: what each digest depends on, and what is done once, or stored first
    "ands lie_in_a_carry": Change(_OPENER, "if not agreed:", "if False:"),
    "bisect keys_depend": Change(_OPENER, "digest(self._context, seed)", "self._context"),
    "bisect wrong_partners": Change(_BISECT, "while any(length", "while False and any(length"),
    "bisect mark_is_stored": Change(_BISECT, "opened()", "opened"),
    "bisect names_the_coin": Change(_BISECTING, "bool((named == coin).all())", "True"),
    "bisect session_is_used": Change(_BISECTING, "if self._next != name", "if False"),
    "folds not_stored": Change(
        _REGISTER, 'if (saved["state"], saved.get("sessions", 0)) !=', "if (state, sessions) !="
    ),
    "folds names_alone": Change("clients/voter.py", "if other[name] != one[name]", "if False"),
    "round_state sessions_of": Change(
        "servers/machine/round.py", "self.sessions > SESSIONS + self.runs", "False"
    ),
    # zoom: a vote that was told never runs again, and is of one set and within what was told
    "voting told_never_runs": Change(
        _STEP, "computed and levels[0] == levels[1] and", "computed and"
    ),
    "voting follows_the_other_only": Change(_STEP, "return computed and levels", "return levels"),
    "voting other_digits_or": Change(
        "servers/machine/round.py", "self.level, self.path, votes", "self.level, votes"
    ),
    "voting the_set_stays": Change(_STEP, "return here if here.ran else leave", "return leave"),
    "voting has_not_of_all": Change(
        _MEMBERS, "return all_here(here) and clients", "return clients"
    ),
    "voting limited_together": Change(
        "servers/machine/round.py",
        "max(self.setbacks, self.attempt - self.level) if",
        "self.setbacks if",
    ),
    "voting are_taken_while": Change(_MEMBERS, "if path != here.path:", "if False:"),
    "durable killed_at_any_commit": Change(
        "servers/rounds/runs.py", "path.before() if computed else path", "path"
    ),
    "durable dealings_are_read": Change(
        "servers/storage/spool.py", "if not (vote and row", "if not (row"
    ),
    "policy out_of_mind": Change(_REGISTER, "return forgotten or not ran", "return not ran"),
    "receipts record_of_a_vote": Change(
        "common/receipts.py", "if (self.record.version == VOTE) is not vote", "if False"
    ),
    "versions may_need_a_later": Change(
        "common/versions.py", "max(LOWEST_WIRE, PEER_WIRE) if", "LOWEST_WIRE if"
    ),
    # weights: lowered to a third, stated by the client, never in what is opened
    "weights cap_above_a_third": Change(
        _BASE, "min(MOST_SHARE, Fraction", "max(MOST_SHARE, Fraction"
    ),
    "round_state weight_cap": Change(
        _BASE, "if clients and max(weights) >", "if False and max(weights) >"
    ),
    "weights count_as_enough": Change(
        "mpc/rounds/params.py", ":= effective(weights)) < least", ":= effective(weights)) < 0"
    ),
    "weights no_digit_of_a_sum": Change(
        _MEAN, "chunk.plain_sum(party)", "chunk.weighted_sum(party)"
    ),
    "weights light_client": Change(
        _NORMS, "self.most * weight**2 //", "self.most * self.heaviest**2 //"
    ),
    "client_policy another_weight": Change(
        "clients/policy.py", "if params.weights and given", "if False and given"
    ),
    "policy default_a_method or risk_is_refused": Change(
        _POLICY, "params.method.single_clients(params.min_clients)", "False"
    ),
    "weights single_clients_result": Change(
        "mpc/rounds/methods/krum.py", "0 < self.chosen <= 2", "0 < self.chosen < 2"
    ),
    # noise: the same for the same clients, another one for others
    "account another_attempt": Change(
        "servers/machine/round.py",
        "digest(self.noise_secret, self.digest)",
        "digest(self.noise_secret, 0)",
    ),
    "repr no_dataclass": Change(_JOURNAL, "secret: bytes = field(repr=False)", "secret: bytes"),
    # issue 36
    "update no_array_of_floats": Change(
        "clients/update.py", 'raise InputError(f"unusable dtype', 'return bool(f"unusable dtype'
    ),
    "model_form first_line": Change("common/model_form.py", "mine[1:] != entry[1:]", "False"),
    "model_form everybody_s": Change(_SHARING, "if form and form !=", "if False and form !="),
    "saturation would_be_cut": Change("clients/upload.py", "if not saturate:", "if False:"),
    "surroundings fork": Change(
        "clients/connection.py", "check_process(self._pid,", "print(self._pid,"
    ),
    "journal clock": Change(_JOURNAL, "self._keep_days([min(made, now)", "print([min(made, now)"),
    "participants needs_more": Change(
        _REGISTER, "if len(able) >= server_round.needed:", "if able:"
    ),
    # issue 37: lanes that the servers seal themselves
    "sealed no_key_is_used_twice": Change(
        _SEALED, "for sender in (0, 1)]", "for sender in (0, 0)]"
    ),
    "sealed with_another_token": Change(_SEALED, "hmac.compare_digest(first, token)", "first"),
    "sealed never_arrives": Change(
        _SEALED,
        "encrypt(self._nonce(len(part)), part, head)",
        "encrypt(self._nonce(len(part)), part, None)",
    ),
    # issue 38
    "left_out some_of_the_faulty": Change(
        "mpc/rounds/methods/nearest.py", "self._asked - caught if", "self._asked if"
    ),
    "clipping liar": Change(
        _MEAN, "surveyed & surveyed.dtype.type(1)", "surveyed >> surveyed.dtype.type(1)"
    ),
    "norms longer_than_the_gap": Change(_NORMS, "[(inside, [short])]", "[(inside, [inside])]"),
    "norms values_that_wrap": Change(_NORMS, "[(inside, [short])]", "[(short, [short])]"),
    # checks of one server by the other
    "round_state no_more_often": Change(_MEMBERS, "here.setbacks >= here.runs", "False"),
    "round_state one_coin_only": Change(
        _MEMBERS, '(here.members[key].coin or b"") == coin', "coin is not None"
    ),
    "round_state has_not_tossed": Change(
        _STEP, "if any(said.coins[key]", "if False and any(said.coins[key]"
    ),
    "round_state nobody_else_in": Change(
        _STEP, "Close() if here.ran or here.values_checked", "Close() if False"
    ),
    "round_state signs_one_record": Change(
        _STEP, "if digest != (here.signed or digest)", "if False"
    ),
    "round_state does_not_vouch": Change(_TABLE, "not here.receipt.is_signed(other", "not (other"),
    "round_state runs_only_what": Change(
        _TABLE, "case Compute() if here.check or", "case Compute() if here.check and"
    ),
    "round_state its_own_limit": Change(_TABLE, "event.attempt > here.runs", "False"),
    "round_state not_its_own": Change(_TABLE, "event.digest != here.digest", "False"),
    "security either_server": Change(
        _REGISTER, "forbidden(config.security, params, config.policy.zoom)", "[]"
    ),
    "security both_servers_must": Change(
        _REGISTER, "if asked.one_malicious_server != config.bounded", "if False"
    ),
    "rounds same_clients_and_coin": Change(_REGISTER, "asked.start != bound.start", "True"),
    "rounds another_model": Change(
        "servers/rounds/requests.py", "call.fields.start.hex() != server_round.asked.start", "False"
    ),
    "durable damaged_share": Change(
        "servers/storage/spool.py", "if digest.digest() != row.sha256[:SHA256_BYTES]", "if False"
    ),
    "reload cannot": Change("servers/config.py", "differing if name in CHANGEABLE]", "differing]"),
    # clients' own checks of servers
    "receipts one_server_is_not": Change(
        "common/receipts.py", "if not self.is_signed(server, key)", "if False"
    ),
    "journal one_secret": Change(_JOURNAL, "if kept.draw.params != params:", "if False:"),
    "journal rotates_no_other": Change(
        _JOURNAL, "kept.draw, kept.written = None, False", "kept.draw = None"
    ),
    "folds outlasts": Change(_JOURNAL, "kept.coins.setdefault(binding, under) != under", "False"),
    # the updates that a client has voted on
    "voter is_claimed_before": Change(_JOURNAL, "if upheld and upheld.ballot:", "if False:"),
    "voter for_good_in_all": Change(
        "clients/spent.py", "if claimed != claimant:", "if not claimant:"
    ),
    "voter freed_by_its_round": Change(
        "clients/spent.py", "elif found.get(update) == round_id", "else"
    ),
    "voter freed_only_if_both": Change(
        "clients/client.py", "if over and claimed == ", "if claimed == "
    ),
    "voter votes_once": Change(_JOURNAL, "ballot.path.votes == upheld.vote + 1", "True"),
    "voter contradict_each_other": Change(
        "clients/voter.py", "if path.digest != record.opened:", "if False:"
    ),
    "voter round_has_changed": Change(
        "clients/voter.py", "if changed := differences(", "if False and differences("
    ),
    "voter no_server_has_masks": Change("clients/voter.py", "if not upheld.masks[0] or", "if"),
    "voter refuses_the_set": Change("clients/voter.py", "if not ballot.record:", "if False:"),
    "voter lacks_a_fold_gets": Change(
        "clients/voter.py", "in ((1, other), (0, one)):", "in ((0, one), (1, other)):"
    ),
    "dealing guards_alone": Change(
        "mpc/protocols/dealing.py", "bool(same) and each.guarded", "bool(same)"
    ),
}


def main() -> int:
    """Run all mutations, or one, and return how many no test noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=int, metavar="N", help="run the Nth mutation alone")
    only = parser.parse_args().only
    rows = [row for row in enumerate(MUTATIONS.items(), 1) if only in (None, row[0])]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=_LEFT_OUT)
        for number, (test, change) in rows:
            path = tree / change.file
            text, before = path.read_text("utf-8"), _run(tree, test)
            change.apply(tree)
            # pytest returns 1 if it has run tests and some failed
            caught = (before, _run(tree, test)) == (0, 1)
            path.write_text(text, "utf-8")
            missed += not caught
            said = "caught" if caught else f"NOT CAUGHT (without it pytest returns {before})"
            print(f"{number:2} {said} by {test}: {change.file}: {change.old}", flush=True)
    print(f"{len(rows) - missed} of {len(rows)} caught")
    return missed


def _run(tree: Path, test: str) -> int:
    """Return the exit code of pytest for a test of a tree; -1 if it takes too long."""
    name, words = test.split(maxsplit=1)
    command = [sys.executable, "-m", "pytest", f"tests/test_{name}.py", "-k", words]
    command += ["-n", "0", "-q", "-x", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(
            command, cwd=tree, env=env, capture_output=True, timeout=LIMIT_S
        ).returncode
    except subprocess.TimeoutExpired:
        return -1


if __name__ == "__main__":
    sys.exit(main())
