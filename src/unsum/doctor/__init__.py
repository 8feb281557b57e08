"""Before an audit: will it work, and what will stand in its way?"""

from unsum.doctor.finding import Finding
from unsum.doctor.run import doctor

__all__ = ["Finding", "doctor"]
