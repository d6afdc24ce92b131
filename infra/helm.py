"""Provide Helm, which renders and checks the chart: found on the machine, otherwise built once by `go install`.

python infra/helm.py   # prints the path of the binary
"""

from __future__ import annotations

from infra.go_binary import GoBinary

HELM = GoBinary("helm", "LEDGERMQ_HELM", "helm.sh/helm/v3/cmd/helm@v3.22.0", minutes=10)

if __name__ == "__main__":
    print(HELM.install())
