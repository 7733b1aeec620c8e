"""Faults in the gradients of biases, sinks and masks, and in how a kernel of ``attention_vjp`` returns its results."""

from types import SimpleNamespace

import numpy as np

from wrong_gradients import FAULTS, changes

__all__ = ["FAULTS"]

# biases


@changes("of_pairs")
def bias_after_the_slope(self, ds):
    """the gradient of the bias is taken after the slope of the softcap"""
    return ds * self.slope


@changes("of_pairs")
def bias_scaled(self, ds):
    """the gradient of the bias is multiplied by the scale"""
    return ds * self.scale


@changes("of_pairs")
def bias_without_delta(self, ds):
    """the gradient of the bias lacks delta"""
    return ds + self.weights * self.delta[..., None]


@changes("of_pairs")
def bias_not_quite_zero(self, ds):
    """pairs that do not attend have gradients of 1e-30, not 0"""
    return ds + 1e-30


@changes("distance")
def table_off_by_one(self, distance):
    """the buckets of the table are those of the next distance"""
    return distance + 1


@changes("distance")
def table_mirrored(self, distance):
    """the buckets of the table are those of query - key"""
    return -distance


# the sink


@changes("of_sink")
def sink_of_the_other_sign(self, d_sink):
    """the gradient of the sink has the wrong sign"""
    return -d_sink


@changes("of_sink")
def sink_of_one_element(self, d_sink):
    """the gradient of the sink is that of one element of the batch"""
    terms = self.sink_terms.sum(axis=-1)
    return d_sink if 0 in terms.shape else -terms.reshape(-1, len(d_sink))[0]


@changes("sink_terms")
def sink_without_d_lse(self, terms):
    """the gradient of the sink lacks d_lse"""
    return terms + self.sink_weights * self.d_lse


@changes("sink_weights")
def sink_weight_of_one(self, weights):
    """the weight of the sink is 1"""
    return np.ones_like(weights)


# masks


@changes("allowed")
def causal_off_by_one(self, allowed):
    """causal masks let one key more through"""
    low, high = self.problem.structure.band
    return allowed | np.broadcast_to(self.distance == 1, self.shape) if low is None and high is not None else allowed


@changes("allowed")
def window_off_by_one(self, allowed):
    """windows are a key narrower"""
    low, _ = self.problem.structure.band
    return (
        allowed & np.broadcast_to(self.distance > self.distance[allowed_at(self, allowed)].min(), self.shape)
        if low
        else allowed
    )


def allowed_at(self, allowed):
    return np.broadcast_to(np.any(allowed, axis=tuple(range(allowed.ndim - 2))), self.distance.shape)


@changes("allowed")
def mask_ignored(self, allowed):
    """array masks are ignored"""
    return allowed | (self.problem.structure.array is not None)


@changes("allowed")
def packed_ignored(self, allowed):
    """packed sequences see each other"""
    return allowed | (self.problem.structure.packed is not None)


@changes("allowed")
def key_lengths_ignored(self, allowed):
    """key_lengths is ignored"""
    return allowed | (self.problem.structure.key_lengths is not None)


@changes("weights")
def mean_of_blind_rows(self, weights):
    """queries that see nothing attend to all keys alike"""
    return np.where(self.blind[..., None], 1 / max(1, self.shape[-1]), weights)


@changes("d_out")
def poison_of_blind_rows(self, d_out):
    """the d_out of queries that see nothing is multiplied by 0"""
    return np.asarray(self.given_d_out, dtype=np.float64)


@changes("of_key")
def keys_not_quite_zero(self, d_key):
    """gradients of keys that are 0 become 1e-30"""
    return np.where(d_key == 0, 1e-30, d_key)


# the call


@changes("gradients")
def other_bits(self, found):
    """a second call gives other bits"""
    counter.calls += 1
    return found if found.query is None else found._replace(query=found.query * np.float32(1 + 2.0**-20 * (counter.calls % 2)))


counter = SimpleNamespace(calls=0)


@changes("gradients")
def writes_into_d_out(self, found):
    """d_out is scaled in place"""
    if self.given_d_out.flags.writeable:
        self.given_d_out *= 2
    return found


@changes("gradients")
def key_only_with_query(self, found):
    """the gradient of the key is 0 unless that of the query is wanted"""
    return found if found.key is None or "query" in self.wanted else found._replace(key=0 * found.key)
