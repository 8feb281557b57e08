"""Every sample's map out of two consecutive convolutions: `method` is the way in, `corner` finds
the maps up to their mixing."""

from unsum.spans.maps.method import separate_maps

__all__ = ["separate_maps"]
