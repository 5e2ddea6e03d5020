# The public names, and where each is defined.

from securemedian.clients.client import Client as Client
from securemedian.clients.config import ClientConfig as ClientConfig
from securemedian.clients.public import PublicSet as PublicSet
from securemedian.clients.update import flatten as flatten
from securemedian.clients.update import unflatten as unflatten
from securemedian.clients.upload import RangeWarning as RangeWarning
from securemedian.clients.upload import Round as Round
from securemedian.common.receipts import Receipt as Receipt
from securemedian.coordinator.coordinator import Coordinator as Coordinator
from securemedian.mpc.errors import BadUpload as BadUpload
from securemedian.mpc.errors import ChannelTimeout as ChannelTimeout
from securemedian.mpc.errors import ClientsDiffer as ClientsDiffer
from securemedian.mpc.errors import ConfigError as ConfigError
from securemedian.mpc.errors import DuplicateUpload as DuplicateUpload
from securemedian.mpc.errors import InputError as InputError
from securemedian.mpc.errors import NotAllowed as NotAllowed
from securemedian.mpc.errors import NotStored as NotStored
from securemedian.mpc.errors import PeerProtocolError as PeerProtocolError
from securemedian.mpc.errors import PeerUnavailable as PeerUnavailable
from securemedian.mpc.errors import PolicyRefused as PolicyRefused
from securemedian.mpc.errors import ReceiptInvalid as ReceiptInvalid
from securemedian.mpc.errors import RoundAborted as RoundAborted
from securemedian.mpc.errors import RoundBusy as RoundBusy
from securemedian.mpc.errors import RoundClosed as RoundClosed
from securemedian.mpc.errors import RoundFailed as RoundFailed
from securemedian.mpc.errors import SecureMedianError as SecureMedianError
from securemedian.mpc.errors import ServerUnreachable as ServerUnreachable
from securemedian.mpc.errors import TooFewClients as TooFewClients
from securemedian.mpc.errors import UnknownCohort as UnknownCohort
from securemedian.mpc.errors import UnknownRound as UnknownRound
from securemedian.mpc.rounds.exchange import Predictions as Predictions
from securemedian.mpc.rounds.methods.bucketed import Bucketed as Bucketed
from securemedian.mpc.rounds.methods.mean import Mean as Mean
from securemedian.mpc.rounds.methods.pairwise import Pairwise as Pairwise
from securemedian.mpc.rounds.methods.radix import Radix as Radix
from securemedian.mpc.rounds.methods.reclustered import Reclustered as Reclustered
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean as TrimmedMean
from securemedian.mpc.rounds.methods.zeno import Zeno as Zeno
from securemedian.mpc.rounds.optimiser import Adam as Adam
from securemedian.mpc.rounds.optimiser import Momentum as Momentum
from securemedian.mpc.rounds.optimiser import NoOptimiser as NoOptimiser
from securemedian.mpc.rounds.optimiser import Optimiser as Optimiser
from securemedian.mpc.rounds.params import RoundParams as RoundParams
from securemedian.mpc.rounds.ranges.base import RangePolicy as RangePolicy
from securemedian.mpc.rounds.ranges.follow import FollowRange as FollowRange
from securemedian.mpc.rounds.ranges.log import LogRange as LogRange
from securemedian.mpc.rounds.ranges.uniform import ConstantRange as ConstantRange
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange as CoordinateRange
from securemedian.mpc.rounds.ranges.uniform import L1Range as L1Range
from securemedian.mpc.rounds.ranges.uniform import LinfRange as LinfRange
from securemedian.mpc.rounds.ranges.uniform import MeanRange as MeanRange

__all__: list[str]
__version__: str
