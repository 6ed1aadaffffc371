# %% [markdown]
# # Three questions, one exchange
#
# Patients with a heart attack (Worcester, 500 of them; scikit-survival has the table). A ward knows
# age, sex, body mass and earlier disease of all, and of half of them what followed: heart failure,
# atrial fibrillation, death. Cardiology has pulse, blood pressure and the kind of infarct. They
# train once for all three: `python examples/several_labels.py`.

# %% Two tables; some answers are missing
import pandas as pd
from sksurv.datasets import load_whas500

import dovetail as dt

LABELS = ["heart failure", "fibrillation", "death"]

features, follow_up = load_whas500()
table = features.astype(float).assign(patient=range(500))
table[LABELS] = table[["chf", "afb"]].assign(death=follow_up["fstat"].astype(float))
table = table.sample(frac=1, random_state=0)
ward = table[["patient", "age", "gender", "bmi", "cvd", *LABELS]].copy()
ward.loc[ward.index[350:], LABELS] = None  # not known yet
ward.loc[ward.index[:350:5], "death"] = None  # lost from sight
cardiology = table[["patient", "hr", "sysbp", "diasbp", "miord", "mitype", "sho", "av3"]]

# %% One run: one alignment, one encrypted question, one model
run = dt.fit(
    dt.APFed(),
    [
        dt.Party("ward", ward, id="patient", label=LABELS),
        dt.Party("cardiology", cardiology, id="patient"),
    ],
    test=0.3,
)
print(run.scores)

# %% Where the partner helped: decided for each label by itself
kept = pd.DataFrame(run.result["distilled"]["labels"]).T
print(kept[["choice", "held_out_gain", "standard_error"]])

# %% Each label's AUC on the test rows, without cardiology, and with it
details = run.result["variants"]["apfed"]["details"]
aucs = {
    what: {label: own["auc"] for label, own in details[name]["ward"]["labels"].items()}
    for what, name in {"local": "best-alone", "solo": "apfed", "joint": "joint"}.items()
}
print(pd.DataFrame(aucs).round(3))

# %% Predict alone: a column for each label
model = run.models["ward"]
unknown = ward[ward["heart failure"].isna()]
print(model.predictions(unknown).columns().keys())
print(model.predict(unknown).head())
model.explain(ward, label="death")
