"""Prints what TensorBoard's own reader and its hparams plugin find in the event files of a directory."""
import sys
import types

from tensorboard import context
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

multiplexer = plugin_event_multiplexer.EventMultiplexer()
multiplexer.AddRunsFromDirectory(sys.argv[1])
multiplexer.Reload()
(run,) = multiplexer.Runs().keys()
events = multiplexer.Tensors(run, "train/loss")
print("scalar train/loss", *(f"{e.step}:{e.tensor_proto.float_val[0]}" for e in events))
for tag in sorted(multiplexer.PluginRunToTagToContent("text")[run]):
    found = multiplexer.Tensors(run, tag)
    assert all(len(e.tensor_proto.string_val) == 1 for e in found)
    print("text", tag, *sorted({e.step for e in found}))

provider = data_provider.MultiplexerDataProvider(multiplexer, sys.argv[1])
ctx = context.RequestContext()
backend = backend_context.Context(types.SimpleNamespace(data_provider=provider))
tags = backend.hparams_metadata(ctx, "")
experiment = backend.experiment_from_metadata(ctx, "", True, tags, [])
statuses = [api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE, api_pb2.STATUS_RUNNING]
params = [api_pb2.ColParams(hparam=info.name) for info in experiment.hparam_infos]
params += [api_pb2.ColParams(metric=info.name) for info in experiment.metric_infos]
request = api_pb2.ListSessionGroupsRequest(
    start_index=0, slice_size=10, col_params=params, allowed_statuses=statuses, include_metrics=True
)
handler = list_session_groups.Handler(ctx, backend, "", request)
(group,) = handler.run().session_groups
(session,) = group.sessions
print("status", api_pb2.Status.Name(session.status))
for name in sorted(group.hparams):
    value = group.hparams[name]
    print("hparam", name, getattr(value, value.WhichOneof("kind")))
for metric in session.metric_values:
    if metric.name.tag == "train/loss":
        print("metric", metric.name.tag, metric.value)
