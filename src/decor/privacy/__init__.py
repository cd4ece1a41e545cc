"""How much noise, and who learns what."""

from . import baselines, theory
from .adversary import Adversary
from .budget import Budget, Exposure
from .calibrate import Couples, calibrate, couples
from .guarantee import Guarantee
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
    "theory",
]
