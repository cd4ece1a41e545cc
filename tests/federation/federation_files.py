"""Texts of federations' files, and one change for each of their fields."""

from dataclasses import replace

from decor.learning.columns import Label, Preparation
from decor.net.identity import line_of

KEYS = [line_of(bytes([k]) * 32) for k in range(1, 10)]


HEAD = """format = "decor-federation-1"
name = "heart"
"""


PRIVACY = """
[privacy]
epsilon = 3.0
delta = 1e-5
adversary = "curious"
"""


TRAINING = """
[training]
steps = 200
clip = 1.0
learning_rate = 0.5
"""


MODEL = """
[model]
kind = "logistic"
features = 30
"""


DATA = """
[data.label]
name = "sick"
classes = ["no", "yes"]

[[data.columns]]
name = "age"
kind = "number"
low = 0
high = 100
missing = 50

[[data.columns]]
name = "ward"
kind = "category"
values = ["north", "south"]
"""


NETWORK = """
[network]
topology = "ring"
"""


TOWNS = ("bonn", "ulm", "kiel", "jena")


def users(names=TOWNS, records=None, addressless=()):
    text = ""
    for k, name in enumerate(names):
        address = "" if name in addressless else f"{name}.example.org:7400"
        text += f'\n[[users]]\nname = "{name}"\naddress = "{address}"\nkey = "{KEYS[k]}"\n'
        text += f"records = {records}\n" if records else ""
    return text


TEXT = HEAD + PRIVACY + TRAINING + MODEL + NETWORK + users()


EXAMPLE = TEXT.replace('"curious"', '"curious"\nunit = "example"').replace(
    "steps = 200", "steps = 200\nbatch_size = 20"
)


EXAMPLE = EXAMPLE.replace(users(), users(records=120))


COMMON = EXAMPLE.replace('unit = "example"', 'unit = "example"\nrate = 0.05').replace(
    "records = 120\n", ""
)


UNEVEN = EXAMPLE


for _count in (121, 57, 300, 41):
    UNEVEN = UNEVEN.replace("records = 120", f"records = {_count}", 1)


CHANGES = {
    "name": lambda f: replace(f, name="lung"),
    "privacy.epsilon": lambda f: with_section(f, "privacy", epsilon=3.5),
    "privacy.delta": lambda f: with_section(f, "privacy", delta=1e-6),
    "privacy.adversary": lambda f: with_section(f, "privacy", adversary="eavesdropper"),
    "privacy.ratio": lambda f: with_section(f, "privacy", ratio=50),
    "training.steps": lambda f: with_section(f, "training", steps=201),
    "training.clip": lambda f: with_section(f, "training", clip=1.5),
    "training.learning_rate": lambda f: with_section(f, "training", learning_rate=0.6),
    "training.momentum": lambda f: with_section(f, "training", momentum=0.9),
    "training.weight_decay": lambda f: with_section(f, "training", weight_decay=0.1),
    "training.gossip_rounds": lambda f: with_section(f, "training", gossip_rounds=2),
    "training.final_gossip_rounds": lambda f: with_section(f, "training", final_gossip_rounds=2),
    "training.batch_size": lambda f: with_section(f, "training", batch_size=32),
    "training.dtype": lambda f: with_section(f, "training", dtype="float64"),
    "model.features": lambda f: with_section(f, "model", features=31),
    "network.timeout": lambda f: with_section(f, "network", timeout=31),
    "network.quorum": lambda f: with_section(f, "network", quorum=0.75),
    "network.patience": lambda f: with_section(f, "network", patience=1),
    "network.topology": lambda f: with_section(f, "network", topology="complete"),
    "users.name": lambda f: with_member(f, 0, name="hof"),
    "users.address": lambda f: with_member(f, 0, address="hof.example.org:7400"),
    "users.key": lambda f: with_member(f, 0, public=bytes([9]) * 32),
}


ELSEWHERE = {  # which base, and the change
    "training.schedule": (
        "cosine",
        lambda f: replace(f, training=replace(f.training, schedule="constant", final=None)),
    ),
    "training.final": ("cosine", lambda f: with_section(f, "training", final=0.5)),
    "training.horizon": ("inverse", lambda f: with_section(f, "training", horizon=51)),
    "training.accelerate": ("rounds", lambda f: with_section(f, "training", accelerate="designed")),
    "privacy.rate": ("common", lambda f: with_section(f, "privacy", rate=0.1)),
    "privacy.unit": ("example", lambda f: f),
    "privacy.sampling": ("replaced", lambda f: with_section(f, "privacy", sampling="fixed")),
    "privacy.relation": ("example", lambda f: with_section(f, "privacy", relation="replace")),
    "users.records": ("example", lambda f: with_member(f, 0, records=121)),
    "model.kind": ("classes", lambda f: with_section(f, "model", kind="multinomial")),
    "model.classes": ("multinomial", lambda f: with_section(f, "model", classes=5)),
    "model.hidden": ("mlp", lambda f: with_section(f, "model", hidden=[16])),
    "model.activation": ("mlp", lambda f: with_section(f, "model", activation="tanh")),
    "model.seed": ("mlp", lambda f: with_section(f, "model", seed=7)),
    "model.code": ("code", lambda f: with_section(f, "model", code="own:other")),
    "model.code_sha256": ("hashed", lambda f: with_section(f, "model", code_sha256="1" * 64)),
    "model.start_sha256": ("started", lambda f: with_section(f, "model", start_sha256="1" * 64)),
    "model.image": ("cnn", lambda f: with_section(f, "model", image=[1, 5, 6])),
    "model.channels": ("cnn", lambda f: with_section(f, "model", channels=[3])),
    "model.loss": ("lossy", lambda f: with_section(f, "model", loss="squared")),
    "data.columns": ("columns", lambda f: replace(f, data=with_range(f.data, 101))),
    "data.label": ("columns", lambda f: replace(f, data=Preparation(f.data.columns, OTHER_LABEL))),
    "network.rows": ("grid", lambda f: with_section(f, "network", rows=1)),
    "network.edges": ("edges", lambda f: with_section(f, "network", edges=f.network.edges[:-1])),
}


MLP = 'kind = "mlp"\nclasses = 4\nhidden = [8]'


BASES = {
    "cosine": TEXT.replace("steps = 200", 'steps = 200\nschedule = "cosine"'),
    "inverse": TEXT.replace("steps = 200", 'steps = 200\nschedule = "inverse-time"\nhorizon = 50'),
    "rounds": TEXT.replace("steps = 200", "steps = 200\ngossip_rounds = 3"),
    "example": EXAMPLE,
    "common": COMMON,
    "replaced": EXAMPLE.replace("epsilon", 'relation = "replace"\nepsilon'),
    "classes": TEXT,
    "multinomial": TEXT.replace('"logistic"', '"multinomial"\nclasses = 4'),
    "mlp": TEXT.replace('kind = "logistic"', MLP),
    "code": TEXT.replace('kind = "logistic"', 'code = "own:model"').replace("features = 30\n", ""),
    "hashed": TEXT.replace(
        'kind = "logistic"', f'code = "own:model"\ncode_sha256 = "{"0" * 64}"'
    ).replace("features = 30\n", ""),
    "started": TEXT.replace("features = 30", f'features = 30\nstart_sha256 = "{"0" * 64}"'),
    "cnn": TEXT.replace(
        'kind = "logistic"', 'kind = "cnn"\nclasses = 4\nimage = [1, 6, 5]\nchannels = [2, 3]'
    ),
    "lossy": TEXT.replace('kind = "logistic"', 'code = "own:model"\nloss = "logistic"').replace(
        "features = 30\n", ""
    ),
    "columns": TEXT.replace("features = 30\n", "") + DATA,
    "grid": TEXT.replace('"ring"', '"grid"'),
    "edges": TEXT.replace(
        'topology = "ring"',
        'edges = [["bonn", "ulm"], ["ulm", "kiel"], ["kiel", "jena"], ["bonn", "jena"]]',
    ),
}


OTHER_LABEL = Label("sick", ["yes", "no"])


def with_range(preparation, high):
    age, *others = preparation.columns
    return Preparation([replace(age, high=high), *others], preparation.label)


def with_section(federation, section, **changed):
    return replace(federation, **{section: replace(getattr(federation, section), **changed)})


def with_member(federation, number, **changed):
    members = list(federation.members)
    members[number] = replace(members[number], **changed)
    return replace(federation, members=tuple(members))
