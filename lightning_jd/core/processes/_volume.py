"""Which way of sending is shorter: a function of sizes and of nothing else."""


def factors_send_less(factors: int, rows: int, *, processes: int) -> bool:
    """Whether the factors of a matrix weight should travel in the place of its rows.

    Rows go to the process that multiplies their columns, once. Factors go to half of the other
    processes, which is worth it as long as they are small and the processes few.

    Args:
        factors: How many numbers the factors are, on all processes together.
        rows: How many numbers the rows are, on all processes together.
        processes: The number of processes.

    Example:
        >>> numbers, rows = 32 * (1024 + 1024), 32 * 1024 * 1024
        >>> [factors_send_less(R * numbers, R * rows, processes=R) for R in (2, 64, 2048)]
        [True, True, False]
    """
    return factors * (processes - 1) / 2 < rows * (processes - 1) / processes


def is_gathered(size: float, *, processes: int) -> bool:
    """Whether a sum over processes is that of what all of them send to all.

    A reduction takes two rounds of messages and sends less. What is small takes no longer to send
    than to announce, so one round is faster.

    Args:
        size: The bytes of the tensor.
        processes: The number of processes.
    """
    return processes * size <= _GATHERED


#: Bytes of all processes together.
_GATHERED = 1 << 17


def sent_by_sum(size: float, *, processes: int) -> float:
    """Bytes that a process sends so that all have the sum of tensors of some bytes."""
    if is_gathered(size, processes=processes):
        return (processes - 1) * size
    return 2 * (processes - 1) / processes * size
