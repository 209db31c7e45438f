from normscope.monitor.adapters.huggingface import HuggingFaceDoctor as HuggingFaceDoctor
from normscope.monitor.adapters.huggingface import HuggingFaceMonitor as HuggingFaceMonitor
from normscope.monitor.adapters.lightning import LightningDoctor as LightningDoctor
from normscope.monitor.adapters.lightning import LightningMonitor as LightningMonitor
from normscope.monitor.monitor import Monitor as Monitor
from normscope.monitor.run import Run as Run
from normscope.monitor.sinks.folder import RunFolder as RunFolder
from normscope.monitor.sinks.tensorboard import TensorBoard as TensorBoard
