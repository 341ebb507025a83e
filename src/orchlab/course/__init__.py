"""What a notebook and a lab's checks.py import.

    from orchlab.course import Lab
    lab = Lab("01")

checks.py takes `passed`, `not_yet`, `wrong` from here; its functions are named after the exercises, take the Lab and return an Answer.
widget.py takes `Submitter` and `StatusLine`; its functions take the Lab and return something that shows itself.
"""

from orchlab.course import pods
from orchlab.course.answers import Answer, Text, broken, not_yet, passed, wrong
from orchlab.course.lab import Lab
from orchlab.course.statusline import StatusLine
from orchlab.course.submitter import Submitter

__all__ = ["Answer", "Lab", "StatusLine", "Submitter", "Text", "broken", "not_yet", "passed", "pods", "wrong"]
