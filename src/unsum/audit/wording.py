"""How figures and names are written; the words themselves stand where leaks can use them, too."""

from unsum.showing.wording import error as error
from unsum.showing.wording import fixed as fixed
from unsum.showing.wording import markdown as markdown
from unsum.showing.wording import one_line as one_line
from unsum.showing.wording import percent as percent
from unsum.showing.wording import plain as plain
from unsum.showing.wording import sample_count as sample_count
