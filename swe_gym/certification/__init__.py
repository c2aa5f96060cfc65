"""Judging rewarded attempts anew, and vouching for them."""

from typing import TYPE_CHECKING

from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .certificate import Certificate as Certificate
    from .certificate import Deviation as Deviation
    from .certificate import Origins as Origins
    from .certificate import certify as certify
    from .certificate import find_unsafe as find_unsafe
    from .certificate import holds_certificates as holds_certificates
    from .certificate import read_known as read_known
    from .claims import Claim as Claim
    from .claims import Claims as Claims
    from .claims import Origin as Origin
    from .claims import RefusedClaim as RefusedClaim
    from .claims import read_claims as read_claims
    from .regrading import JudgeSettings as JudgeSettings
    from .regrading import Regraded as Regraded
    from .regrading import find_invalid as find_invalid
    from .regrading import regrade as regrade

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)
