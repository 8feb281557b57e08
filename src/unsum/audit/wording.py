"""How figures and names are written; the words themselves stand where leaks can use them, too."""

from unsum.wording import error as error
from unsum.wording import fixed as fixed
from unsum.wording import markdown as markdown
from unsum.wording import one_line as one_line
from unsum.wording import percent as percent
from unsum.wording import plain as plain
from unsum.wording import sample_count as sample_count
