from normscope.zoo.data.load import DATASETS as DATASETS
from normscope.zoo.data.load import load_data as load_data
from normscope.zoo.data.normalization import PRESETS as PRESETS
from normscope.zoo.data.normalization import Normalization as Normalization
from normscope.zoo.data.source import Batch as Batch
from normscope.zoo.data.source import Data as Data
from normscope.zoo.data.source import Records as Records
