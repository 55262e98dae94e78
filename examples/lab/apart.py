"""A function in a process of its own: whatever happens there, this one goes on."""

import multiprocessing
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from examples.lab.crew import leave_with_parent
from lightning_jd.errors import JDError

_Answer = TypeVar("_Answer")


def apart(function: Callable[..., _Answer], /, **arguments: Any) -> _Answer:
    """Call a function in a new process.

    An error of a device stays with the process that met it, and a process without memory is killed:
    both end with that process, and are told here.

    Args:
        function: A function of a module, so that it can be sent.
        arguments: Of that function.

    Raises:
        JDError: What the function raised if it was one; else with its traceback, or with the exit
            code of a process that died.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_enter, args=(sender, function, arguments))
    process.start()
    sender.close()  # or the end of the process would not be seen
    try:
        answer, error = receiver.recv()
    except EOFError:
        process.join()
        raise JDError(
            f"The process ended with exit code {process.exitcode} and no answer (-9 is most often "
            "a lack of memory, -11 a fault of a library)."
        ) from None
    except BaseException:  # Ctrl-C
        process.terminate()
        raise
    process.join()
    if error is not None:
        raise error
    found: _Answer = answer
    return found


def _enter(sender: Connection, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    threading.Thread(target=leave_with_parent, daemon=True).start()
    answer: tuple[Any, JDError | None]
    try:
        answer = function(**arguments), None
    except KeyboardInterrupt:  # of the terminal, for all its processes: who started this one tells
        return
    except JDError as error:
        answer = None, error
    except Exception:
        answer = None, JDError(traceback.format_exc())
    sender.send(answer)
