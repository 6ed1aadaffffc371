# %% [markdown]
# # Two tables, one model
#
# A walk to take cell by cell in a notebook or editor that knows `# %%`, or at once:
# `python examples/walk.py`. A clinic knows 150 diagnoses and ten measurements; a lab has twenty
# others of most of its patients. They train together, and the clinic predicts alone.

# %% Two tables that do not line up
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import accuracy_score

import dovetail as dt

bunch = load_breast_cancer(as_frame=True)
patients = [f"patient-{number:03d}" for number in range(569)]
table = bunch.frame.assign(patient=patients, diagnosis=bunch.target_names[bunch.target])
table = table.sample(frac=1, random_state=0)
clinic_df = table.filter(regex="patient|mean|diagnosis")
clinic_df.loc[clinic_df.index[300:], "diagnosis"] = None  # most are not diagnosed yet
lab_df = table.filter(regex="patient|worst|error").sample(frac=0.9, random_state=1)
clinic_df.head()

# %% Each party, with what is its own to decide
clinic = dt.Party("clinic", clinic_df, id="patient", label="diagnosis")
lab = dt.Party("lab", lab_df, id="patient", apfed={"encoder": [64, 32]})
print(clinic, lab, sep="\n")

# %% Train, and two baselines on the same rows: the clinic alone, and classic vertical learning
method = dt.APFed("contrastive", encoder=[64, 32])
run = dt.fit(method, [clinic, lab], test=0.5, baselines=["alone", "tvfl"], seeds=3)
run  # a table and a picture

# %% The scores, as text or for pandas
print(run.scores)
run.scores.to_pandas()

# %% How it learned: a line for each epoch, of each seed and variant
run.curves().groupby(["variant", "number"])["accuracy"].mean().unstack(0).tail(3)

# %% Predict alone, from raw columns
model = run.models["clinic"]
undiagnosed = clinic_df[clinic_df["diagnosis"].isna()]
probabilities = model.predict_proba(undiagnosed)
print(dict(zip(model.classes, probabilities[0].round(3).tolist(), strict=True)))
truth = table.loc[undiagnosed.index, "diagnosis"]
accuracy = accuracy_score(truth, model.predict(undiagnosed))
print(f"right on patients without a diagnosis: {accuracy:.3f}")

# %% What it leans on, column by column
model.explain(clinic_df)

# %% Keep the model: this folder is all that predictions need
folder = model.save("out/walk/model")
assert np.array_equal(dt.load(folder).predict_proba(undiagnosed), probabilities)

# %% A page to show to others
print(run.report("out/walk/report.html"))
