"""How much noise a budget needs, and what each adversary learns."""

from . import baselines, theory
from .adversary import Adversary
from .budget import Budget, Exposure
from .calibrate import calibrate
from .gossip_choice import gossip_for
from .guarantee import Guarantee
from .noise_pairs import Couples, couples
from .plan import NoisePlan, Phases

__all__ = [
    "Adversary",
    "Budget",
    "Couples",
    "Exposure",
    "Guarantee",
    "NoisePlan",
    "Phases",
    "baselines",
    "calibrate",
    "couples",
    "gossip_for",
    "theory",
]
