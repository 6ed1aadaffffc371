# %% [markdown]
# # When does it come back?
#
# Three hospitals have different women with breast cancer (GBSG 2, 686 of them; scikit-survival has
# the table), and ask together when the cancer comes back. No row leaves a hospital, and no count of
# one alone. Cell by cell in an editor that knows `# %%`, or at once: `python examples/survival.py`.

# %% Three tables with different rows; a quarter is kept for tests
import pandas as pd
from sksurv.datasets import load_gbsg2

import dovetail as dt

features, follow_up = load_gbsg2()
table = features.assign(woman=range(686), days=follow_up["time"], relapse=follow_up["cens"])
table["hormones"] = (features["horTh"] == "yes").astype(float)
table = table.drop(columns=["horTh", "menostat", "tgrade"]).sample(frac=1, random_state=0)
new, known = table[:171], table[171:]
label = {"time": "days", "event": "relapse"}
hospitals = [
    dt.Party(name, known[start::3], id="woman", label=label)
    for start, name in enumerate(["north", "south", "west"])
]

# %% Kaplan and Meier's curves of all hospitals, and the log-rank test
curves = dt.kaplan_meier(hospitals, group="hormones")
print(curves.medians, curves.log_rank)
curves.to_pandas().head()

# %% Cox regression of all rows, by sums
columns = ["age", "tsize", "pnodes", "progrec", "hormones"]
regression = dt.cox(hospitals, columns)
print(regression.to_pandas().round(3))

# %% Its model: the median in days, the risk, survival at the ends of intervals
print(regression.model.predictions(new[:3]).columns().keys())
print(regression.model.predict(new[:3]))

# %% The same hospitals train a network, each with baseline hazards of its own
run = dt.fit(dt.CHFL(rounds=10), hospitals, test=None, quiet=True)
c_index = {name: run.models[name].score(new)["c_index"] for name in run.models}
c_index["cox"] = regression.model.score(new)["c_index"]
print(pd.Series(c_index).round(3))

# %% A model is a folder; `dovetail predict models/relapse new.csv` takes it
regression.model.save("models/relapse")
dt.load("models/relapse").predict(new).describe()
