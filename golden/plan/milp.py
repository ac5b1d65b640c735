"""Solves cost graphs as integer programmes with HiGHS: one variable for each option of each decision, one for each pair of options of two
decisions that have a price together (Zheng et al. 2022, Alpa, section 4.2).

Standard input, numbers separated by blanks: the limit of memory; the number of decisions; for each its number of options, and the seconds and
bytes of each; the number of pairs; for each both decisions, and the seconds by option of the first and then of the second.
Standard output: the least seconds of the programme and of its linear relaxation, or "infeasible".
"""

import sys

import highspy
import numpy as np


def main():
    numbers = iter(sys.stdin.read().split())
    number, real = lambda: int(next(numbers)), lambda: float(next(numbers))
    limit, costs, rows, memory = real(), [], [], []
    decisions = []
    for _ in range(number()):
        options = range(len(costs), len(costs) + number())
        decisions.append(options)
        for option in options:
            costs.append(real())
            memory.append((option, real()))
        rows.append((1.0, 1.0, [(option, 1.0) for option in options]))
    if limit < float("inf"):
        rows.append((-highspy.kHighsInf, limit, memory))
    pairs = 0
    for _ in range(number()):
        first, second = decisions[number()], decisions[number()]
        table = {}
        for a in first:
            for b in second:
                table[a, b] = len(costs)
                costs.append(real())
                pairs += 1
        # Marginals of the pairs are the options, which is as tight as a linear programme over them gets.
        for a in first:
            rows.append((0.0, 0.0, [(table[a, b], 1.0) for b in second] + [(a, -1.0)]))
        for b in second:
            rows.append((0.0, 0.0, [(table[a, b], 1.0) for a in first] + [(b, -1.0)]))
    impossible = [column for column, cost in enumerate(costs) if cost == float("inf")]
    upper = np.ones(len(costs))
    upper[impossible] = 0.0
    finite = np.array([0.0 if cost == float("inf") else cost for cost in costs])

    def solve(integer):
        model = highspy.Highs()
        model.setOptionValue("output_flag", False)
        model.setOptionValue("mip_rel_gap", 0.0)
        model.setOptionValue("mip_abs_gap", 1e-9)
        model.addVars(len(costs), np.zeros(len(costs)), upper)
        for column, cost in enumerate(finite):
            model.changeColCost(column, cost)
        if integer:
            for options in decisions:
                for option in options:
                    model.changeColIntegrality(option, highspy.HighsVarType.kInteger)
        for low, high, terms in rows:
            columns, values = zip(*terms)
            model.addRow(low, high, len(terms), np.array(columns, dtype=np.int32), np.array(values))
        model.run()
        if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        return model.getInfo().objective_function_value

    programme, relaxation = solve(True), solve(False)
    print("infeasible" if programme is None else f"{programme!r} {relaxation!r}")


main()
