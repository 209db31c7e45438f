from normscope.lipschitz.loss.constants import corollary_14 as corollary_14
from normscope.lipschitz.loss.constants import corollary_14_printed as corollary_14_printed
from normscope.lipschitz.loss.constants import known_losses as known_losses
from normscope.lipschitz.loss.constants import loss_at as loss_at
from normscope.lipschitz.loss.constants import loss_constant as loss_constant
from normscope.lipschitz.loss.constants import register_loss as register_loss
