from normscope.zoo.catalogue import ZOO as ZOO
from normscope.zoo.catalogue import ZooEntry as ZooEntry
from normscope.zoo.catalogue import build as build
from normscope.zoo.catalogue import example_input as example_input
from normscope.zoo.load import ModelOrigin as ModelOrigin
from normscope.zoo.load import load_model as load_model
from normscope.zoo.state_dict import load_weights as load_weights
from normscope.zoo.state_dict import read_state_dict as read_state_dict
