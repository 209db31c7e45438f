from normscope.analysis import Options as Options
from normscope.analysis import analyze as analyze
from normscope.analysis.bounds.result import BoundsResult as BoundsResult
from normscope.analysis.bounds.run import bounds as bounds
from normscope.analysis.compare import Comparison as Comparison
from normscope.analysis.compare import compare as compare
from normscope.analysis.weight_lipschitz import weight_lipschitz as weight_lipschitz
from normscope.core.errors import NormscopeError as NormscopeError
from normscope.core.finding import Finding as Finding
from normscope.core.result import Result as Result
from normscope.core.value import Kind as Kind
from normscope.core.value import Value as Value
from normscope.curvature.result import CurvatureResult as CurvatureResult
from normscope.curvature.run import curvature as curvature
from normscope.doctor import CheckResult as CheckResult
from normscope.doctor import UnhealthyError as UnhealthyError
from normscope.doctor import assert_healthy as assert_healthy
from normscope.doctor import check as check
from normscope.doctor.fixes import fix as fix
from normscope.generalization.bench.run import try_bound as try_bound
from normscope.generalization.synthetic import decompose_synthetic as decompose_synthetic
from normscope.geometry import optim as optim
from normscope.geometry.discover import Symmetries as Symmetries
from normscope.geometry.discover import symmetry as symmetry
from normscope.monitor import Monitor as Monitor
from normscope.monitor import Run as Run
from normscope.monitor.check_run import check_run as check_run
from normscope.monitor.live.server import watch as watch
from normscope.operators.registry import register_rule as register_rule
from normscope.papers.audit import Audit as Audit
from normscope.papers.audit import audit as audit
from normscope.papers.explain import every_statement as every_statement
from normscope.papers.explain import explain as explain
from normscope.papers.than2025.complexity.network_complexity import complexity as complexity
from normscope.papers.than2025.extremal.constructions import extremal as extremal
from normscope.report.html import report_html as report_html
from normscope.report.html import save_html as save_html
from normscope.report.reproduction import reproduce as reproduce
from normscope.zoo.data.load import load_data as load_data
from normscope.zoo.load import load_model as load_model

__version__: str
decompose = decompose_synthetic
statements = every_statement
weights = weight_lipschitz
