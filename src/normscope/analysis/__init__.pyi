from normscope.analysis.capacity import analyze as analyze
from normscope.analysis.options import Options as Options
