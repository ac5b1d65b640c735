//! trace.json: valid when finished, and readable by viewers when cut.

use bessemer_runlog::{
    LaneSpan, RunLogError, Span, TRACE_FILE, Trace, TraceContents, TraceLanes, TraceNote, read_trace,
};
use serde_json::{Value, json};
use std::fs;

fn span(name: &str, start_us: f64) -> Span<'_> {
    let args = json!({ "step": 3 }).as_object().unwrap().clone();
    Span { name, category: "compute", rank: 1, stream: 2, start_us, duration_us: 7.25, args }
}

#[test]
fn a_finished_trace_is_the_array_of_its_events() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(TRACE_FILE);
    let mut trace = Trace::create(&path).unwrap();
    trace.name(1, None, "rank 1").unwrap();
    trace.name(1, Some(2), "compute \"stream\"").unwrap();
    trace.span(&span("forward", 0.5)).unwrap();
    trace.span(&Span { args: Default::default(), ..span("backward", 1e12) }).unwrap();
    trace.finish().unwrap();
    let found: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let name = |what: &str, tid: u64, name: &str| json!({"ph": "M", "name": what, "pid": 1, "tid": tid, "args": {"name": name}});
    let complete = |name: &str, ts: f64| json!({"ph": "X", "name": name, "cat": "compute", "pid": 1, "tid": 2, "ts": ts, "dur": 7.25});
    let mut forward = complete("forward", 0.5);
    forward["args"] = json!({ "step": 3 });
    let wanted = json!([
        name("process_name", 0, "rank 1"),
        name("thread_name", 2, "compute \"stream\""),
        forward,
        complete("backward", 1e12),
    ]);
    assert_eq!(found, wanted);
}

#[test]
fn an_empty_trace_is_an_empty_array() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(TRACE_FILE);
    Trace::create(&path).unwrap().finish().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&fs::read(&path).unwrap()).unwrap(), json!([]));
}

#[test]
fn a_trace_of_a_killed_run_lacks_only_the_bracket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(TRACE_FILE);
    let mut trace = Trace::create(&path).unwrap();
    for i in 0..100 {
        trace.span(&span("step", f64::from(i))).unwrap();
    }
    trace.flush().unwrap();
    std::mem::forget(trace);
    let text = fs::read_to_string(&path).unwrap() + "]";
    assert_eq!(serde_json::from_str::<Vec<Value>>(&text).unwrap().len(), 100);
}

#[test]
fn times_that_json_lacks_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(TRACE_FILE);
    let mut trace = Trace::create(&path).unwrap();
    assert!(matches!(trace.span(&span("bad", f64::NAN)), Err(RunLogError::Record { .. })));
    trace.span(&span("good", 1.0)).unwrap();
    trace.finish().unwrap();
    assert_eq!(serde_json::from_slice::<Vec<Value>>(&fs::read(&path).unwrap()).unwrap().len(), 1);
}

#[test]
fn a_trace_is_read_back_whole_or_as_far_as_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(TRACE_FILE);
    let mut trace = Trace::create(&path).unwrap();
    trace.name(1, None, "rank 1").unwrap();
    let args = json!({ "text": "a\nb" }).as_object().unwrap().clone();
    let note = TraceNote { name: "program".into(), args };
    trace.note(0, &note).unwrap();
    for i in 0..5 {
        trace.span(&span("F 3.0", f64::from(i))).unwrap();
    }
    trace.flush().unwrap();
    std::mem::forget(trace);
    let text = fs::read_to_string(&path).unwrap();
    let contents = read_trace(&path).unwrap();
    let spans = contents.spans;
    assert_eq!((contents.notes.len(), contents.notes[0].name.as_str()), (2, "process_name"));
    assert_eq!(contents.notes[1], note);
    assert_eq!(spans.len(), 5);
    let s = &spans[3];
    assert_eq!((s.name.as_str(), s.category.as_str(), s.rank, s.stream), ("F 3.0", "compute", 1, 2));
    assert_eq!((s.start_us, s.duration_us, &s.args["step"]), (3.0, 7.25, &json!(3)));
    let read = |text: &str| {
        fs::write(&path, text).unwrap();
        read_trace(&path).map(|contents| contents.spans.len())
    };
    // Finished, and cut anywhere.
    assert_eq!(read(&(text.clone() + "\n]\n")).unwrap(), 5);
    for cut in 1..text.len() {
        let whole = text[..cut].matches("\"args\":{\"step\":3}}").count();
        assert_eq!(read(&text[..cut]).unwrap(), whole, "{}", &text[..cut]);
    }
    assert_eq!(read("[]").unwrap(), 0);
    for bad in [
        "",
        "{}",
        "hello",
        "[{\"ph\":\"X\"}]",
        "[\"ph\"]",
        "[{\"ph\":\"X\",\"name\":\"a\",\"pid\":0,\"ts\":0,\"dur\":-1}]",
    ] {
        assert!(matches!(read(bad), Err(RunLogError::Trace { .. })), "{bad}");
    }
    assert!(matches!(read_trace(dir.path().join("none")), Err(RunLogError::Io { .. })));
}

#[test]
fn what_overlaps_in_a_lane_goes_to_another_stream() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(TRACE_FILE);
    let mut lanes = TraceLanes::create(&path, &["passes"]).unwrap();
    let mut add = |lane, nested, name, start_us, end_us| {
        let (rank, category, args) = (3, "x", Default::default());
        lanes.span(LaneSpan { rank, lane, nested, category, name, start_us, end_us, args }).unwrap();
    };
    add("passes", true, "step", 0.0, 100.0);
    add("passes", true, "F", 1.0, 20.0);
    add("shard", false, "a", 2.0, 30.0);
    add("tensor", false, "b", 3.0, 5.0);
    add("shard", false, "c", 10.0, 40.0);
    add("shard", false, "d", 30.0, 35.0);
    lanes.finish().unwrap();
    let TraceContents { spans, notes } = read_trace(&path).unwrap();
    let streams: Vec<_> = spans.iter().map(|s| (s.name.as_str(), s.stream)).collect();
    assert_eq!(streams, [("step", 0), ("F", 0), ("a", 16), ("b", 32), ("c", 17), ("d", 16)]);
    let names: Vec<_> = notes.iter().map(|n| n.args["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["passes", "shard", "tensor", "shard (2)"]);
}
