"""Small tables of hospitals, and a task's file for them."""

import csv

import numpy as np

FILE = """format = "decor-task-1"
name = "heart"

[data.label]
name = "sick"
classes = ["no", "yes"]

[[data.columns]]
name = "age"
kind = "number"
low = 0
high = 100

[[data.columns]]
name = "dose"
kind = "number"
low = 0
high = 1
missing = 0

[[data.columns]]
name = "ward"
kind = "category"
values = ["north", "south"]

[model]
kind = "logistic"
"""
ONE_FILE = '\n[source]\nfile = "all.csv"\n'
BY_USER = ONE_FILE + 'user = "hospital"\n'
EACH = '\n[users]\nbonn = "bonn.csv"\nulm = "ulm.csv"\nkiel = "kiel.csv"\n'
PUBLIC = 'test = "public.csv"\ntest_public = true\n'
NAMES = ("bonn", "ulm", "kiel")


def records(count, seed=0):
    """Records of which age tells the label."""
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, count)
    sick = np.where(age + rng.normal(0, 10, count) > 50, "yes", "no")
    dose, ward = rng.uniform(0, 1, count), rng.choice(["north", "south", "west", ""], count)
    hospital = np.array(NAMES)[np.arange(count) % len(NAMES)]
    return {
        "hospital": hospital.tolist(),
        "age": [f"{value:.1f}" for value in age],
        "dose": [f"{value:.3f}" for value in dose],
        "ward": ward.tolist(),
        "sick": sick.tolist(),
    }


def write(path, table, separator=","):
    with path.open("w", newline="") as file:
        rows = csv.writer(file, delimiter=separator)
        rows.writerow(table)
        rows.writerows(zip(*table.values(), strict=True))


def without(table, *names):
    return {name: column for name, column in table.items() if name not in names}


def write_all(folder, count=120):
    """all.csv with the column hospital, a file for each hospital, and public.csv."""
    table = records(count)
    write(folder / "all.csv", table)
    for name in NAMES:
        rows = [k for k, each in enumerate(table["hospital"]) if each == name]
        own = {column: [cells[k] for k in rows] for column, cells in table.items()}
        # another order and another dialect at each of them
        own = dict(sorted(without(own, "hospital").items(), reverse=name == "ulm"))
        write(folder / f"{name}.csv", own, ";" if name == "kiel" else ",")
    write(folder / "public.csv", without(records(60, seed=1), "hospital"))
