"""A model logged to MLflow is loaded by a process that knows MLflow only."""

import json
import subprocess
import sys

import numpy as np
import pytest
from learned import clinic_table, fitted_model

from dovetail.models.learners.linear import Linear

FRESH = """
import json, sys, mlflow, pandas
rows = pandas.read_parquet("rows.parquet")
print(json.dumps(mlflow.pyfunc.load_model("flavour").predict(rows)["p(yes)"].tolist()))
"""


@pytest.mark.slow
def test_a_fresh_process_of_mlflow_predicts_what_the_model_predicts(tmp_path):
    pytest.importorskip("mlflow")
    from dovetail.companions.service.flavour import save_mlflow

    table = clinic_table(200)
    model = fitted_model(table, [Linear()])
    model.save(tmp_path / "m")
    save_mlflow(tmp_path / "m", tmp_path / "flavour")
    assert not list((tmp_path / "flavour").rglob("*.pkl"))
    table.drop(columns=["ill", "cost"]).to_parquet(tmp_path / "rows.parquet")
    done = subprocess.run(
        [sys.executable, "-c", FRESH], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    probabilities = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(probabilities, model.predict_proba(table)[:, 1], atol=1e-6)
