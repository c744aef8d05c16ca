//! Stream capture and graphs: what a captured stream would have done, kept as nodes in lanes (one for each stream that
//! took part), and played again on a launch. Faults strike anew at each launch, as each is a transfer of its own.
use super::codes::*;
use super::context::Driver;
use super::engine::{Op, Stream, lock};
use super::timeline::Work;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Puts one operation into a stream.
pub(crate) type Submit =
    Arc<dyn Fn(&'static Driver, &Arc<Stream>) -> Result<Arc<Op>, Code> + Send + Sync>;

#[derive(Clone)]
struct Node {
    lane: usize,
    /// Nodes before it, of its own lane or of others.
    after: Vec<usize>,
    submit: Submit,
}

/// What a capture came to.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    nodes: Vec<Node>,
    /// GPU of each lane; lane 0 is the stream that was captured.
    lanes: Vec<usize>,
}

impl Graph {
    /// Number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }
}

#[derive(Default)]
struct Building {
    graph: Graph,
    /// Of each lane: what its next node comes after.
    ends: Vec<Vec<usize>>,
}

/// A capture under way.
#[derive(Default)]
pub(crate) struct Capture {
    building: Mutex<Building>,
    invalid: AtomicBool,
    over: AtomicBool,
}

/// A point of a capture, as an event marks it.
#[derive(Clone)]
pub(crate) struct Mark {
    capture: Arc<Capture>,
    after: Vec<usize>,
}

/// A stream's part in a capture.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) capture: Arc<Capture>,
    lane: usize,
}

impl Part {
    /// Whether the capture cannot end well any more.
    pub(crate) fn invalid(&self) -> bool {
        self.capture.invalid.load(Ordering::SeqCst)
    }

    /// A call that a capture does not allow: it ends the capture's hope.
    pub(crate) fn spoil(&self) -> Code {
        self.capture.invalid.store(true, Ordering::SeqCst);
        CAPTURE_UNSUPPORTED
    }

    fn record(&self, submit: Submit) -> Result<(), Code> {
        if self.invalid() {
            return Err(CAPTURE_INVALIDATED);
        }
        let mut b = lock(&self.capture.building);
        let node = b.graph.nodes.len();
        let after = std::mem::replace(&mut b.ends[self.lane], vec![node]);
        b.graph.nodes.push(Node {
            lane: self.lane,
            after,
            submit,
        });
        Ok(())
    }

    /// The present end of this lane.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            capture: Arc::clone(&self.capture),
            after: lock(&self.capture.building).ends[self.lane].clone(),
        }
    }
}

/// Starts a capture on a stream.
pub(crate) fn begin(stream: &Stream) -> Result<(), Code> {
    let mut part = lock(&stream.part);
    if part.is_some() {
        return Err(ILLEGAL_STATE);
    }
    let capture = Arc::new(Capture::default());
    {
        let mut b = lock(&capture.building);
        b.graph.lanes.push(stream.gpu);
        b.ends.push(Vec::new());
    }
    *part = Some(Part { capture, lane: 0 });
    Ok(())
}

/// Ends the capture that this stream began.
pub(crate) fn end(driver: &Driver, stream: &Stream) -> Result<Graph, Code> {
    let part = lock(&stream.part).clone().ok_or(ILLEGAL_STATE)?;
    if part.lane != 0 {
        part.spoil();
        return Err(CAPTURE_UNMATCHED);
    }
    part.capture.over.store(true, Ordering::SeqCst);
    *lock(&stream.part) = None;
    for other in driver.streams.all() {
        let mut theirs = lock(&other.part);
        if theirs
            .as_ref()
            .is_some_and(|p| Arc::ptr_eq(&p.capture, &part.capture))
        {
            *theirs = None;
        }
    }
    if part.invalid() {
        return Err(CAPTURE_INVALIDATED);
    }
    let b = lock(&part.capture.building);
    // Everything must lie before the end of the first lane.
    let mut seen = BTreeSet::new();
    let mut open: Vec<usize> = b.ends[0].clone();
    while let Some(n) = open.pop() {
        if seen.insert(n) {
            open.extend(&b.graph.nodes[n].after);
        }
    }
    if seen.len() != b.graph.nodes.len() {
        return Err(CAPTURE_UNJOINED);
    }
    Ok(b.graph.clone())
}

/// Lets a stream wait for a mark: it joins the capture if it is in none.
pub(crate) fn join(stream: &Stream, mark: &Mark) -> Result<(), Code> {
    if mark.capture.over.load(Ordering::SeqCst) {
        return Err(INVALID_VALUE);
    }
    let mut part = lock(&stream.part);
    let mut b = lock(&mark.capture.building);
    let lane = match part.as_ref() {
        Some(p) if Arc::ptr_eq(&p.capture, &mark.capture) => p.lane,
        Some(p) => {
            p.capture.invalid.store(true, Ordering::SeqCst);
            return Err(CAPTURE_ISOLATION);
        }
        None => {
            b.graph.lanes.push(stream.gpu);
            b.ends.push(Vec::new());
            let lane = b.ends.len() - 1;
            *part = Some(Part {
                capture: Arc::clone(&mark.capture),
                lane,
            });
            lane
        }
    };
    b.ends[lane].extend(&mark.after);
    Ok(())
}

/// Puts an operation into a stream, or into the capture that the stream is part of.
pub(crate) fn put(
    driver: &'static Driver,
    stream: &Arc<Stream>,
    submit: Submit,
) -> Result<(), Code> {
    let part = lock(&stream.part).clone();
    match part {
        Some(part) => part.record(submit),
        None => submit(driver, stream).map(|_| ()),
    }
}

/// A graph that can be launched.
pub(crate) struct Executable {
    graph: Graph,
    streams: Vec<Arc<Stream>>,
    launching: Mutex<()>,
}

impl Executable {
    pub(crate) fn new(driver: &'static Driver, graph: Graph) -> Self {
        let stream = |&gpu: &usize| {
            let poison = Arc::clone(&driver.context_of(gpu).poison);
            Stream::start(&driver.engine, gpu, false, poison)
        };
        Self {
            streams: graph.lanes.iter().map(stream).collect(),
            graph,
            launching: Mutex::default(),
        }
    }

    /// Plays the graph after what the stream holds; what the stream gets later comes after all of it.
    pub(crate) fn launch(&self, driver: &'static Driver, stream: &Arc<Stream>) -> Result<(), Code> {
        let _one = lock(&self.launching);
        let before: Vec<Arc<Op>> = stream
            .last()
            .into_iter()
            .chain(driver.order(stream))
            .collect();
        let lane = |n: usize| {
            if n == 0 && self.streams[0].gpu == stream.gpu {
                stream
            } else {
                &self.streams[n]
            }
        };
        let mut ops: Vec<Arc<Op>> = Vec::new();
        for node in &self.graph.nodes {
            let on = lane(node.lane);
            if node.after.is_empty() {
                before.iter().for_each(|op| on.hold_for(Arc::clone(op)));
            }
            for &n in &node.after {
                on.hold_for(Arc::clone(&ops[n]));
            }
            ops.push((node.submit)(driver, on)?);
        }
        ops.into_iter().for_each(|op| stream.hold_for(op));
        stream.submit(
            &driver.engine,
            Vec::new(),
            Some(Work::fixed(0)),
            false,
            Box::new(|_| Ok(None)),
        );
        Ok(())
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        self.streams.iter().for_each(|s| s.close());
    }
}
