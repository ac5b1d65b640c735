//! A small untrained model behind a server on a free port.

use crate::fake::{VOCABULARY, tokenizer};
use bessemer_arch::{Model as Arch, ModelConfig};
use bessemer_eval::generate::{CachedDecoder, GenerateConfig, GeneratedText, generate_text};
use bessemer_http::{Access, Server};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_runtime::{Cache, CacheShape, Decoder, ModelError, NextPosition, Purpose, Shape};
use bessemer_serve::chat::ChatTemplate;
use bessemer_serve::engine::{Engine, LOGIT_ROWS, ModelEngine};
use bessemer_serve::{Model, Service, limits, serve};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) const CONTEXT: usize = 160;
/// Time for running requests when a server stops.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);

fn arch() -> Arch {
    let config = ModelConfig {
        architecture: "llama".into(),
        layers: Some(2),
        width: Some(32),
        heads: Some(4),
        kv_heads: Some(2),
        head_dim: Some(8),
        ffn_width: Some(48),
        context: Some(CONTEXT as u64),
        // Wide, so that an untrained model has opinions.
        init_std: 0.3,
        ..ModelConfig::default()
    };
    config.resolve(Some(VOCABULARY)).unwrap()
}

fn decoder() -> (CpuBackend, Decoder) {
    let mut backend = CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let shape = Shape { sequences: 1, seq: 1, purpose: Purpose::Score };
    let decoder = Decoder::new(&mut backend, &arch(), shape).unwrap();
    decoder.init(&mut backend, 7).unwrap();
    (backend, decoder)
}

pub(crate) fn engine(slots: usize) -> ModelEngine<CpuBackend> {
    let (mut backend, decoder) = decoder();
    let shape = CacheShape { logit_rows: LOGIT_ROWS, ..CacheShape::slots(slots, CONTEXT) };
    let cache = Cache::new(&mut backend, &decoder, shape).unwrap();
    ModelEngine { backend, decoder, cache }
}

/// A text as `bessemer generate` makes it.
pub(crate) fn generated(prompt: &str, config: &GenerateConfig) -> GeneratedText {
    let (mut backend, decoder) = decoder();
    let mut cache = Cache::new(&mut backend, &decoder, CacheShape::one(CONTEXT)).unwrap();
    let mut model = CachedDecoder::new(&decoder, &mut backend, &mut cache).unwrap();
    generate_text(&mut model, &tokenizer(), prompt, config, 0, &mut |_| ControlFlow::Continue(())).unwrap()
}

pub(crate) fn model(chat: ChatTemplate) -> Model {
    Model { name: "tiny".into(), tokenizer: tokenizer(), context: CONTEXT, chat, created: 1_700_000_000 }
}

/// An engine that waits before each pass while somebody holds the gate.
pub(crate) struct Gated<E> {
    engine: E,
    gate: Arc<Mutex<()>>,
}

impl<E: Engine> Engine for Gated<E> {
    fn slots(&self) -> usize {
        self.engine.slots()
    }
    fn capacity(&self) -> usize {
        self.engine.capacity()
    }
    fn chunk(&self) -> usize {
        self.engine.chunk()
    }
    fn free_piece(&self) -> Option<usize> {
        self.engine.free_piece()
    }
    fn truncate(&mut self, slot: usize, len: usize) {
        self.engine.truncate(slot, len);
    }
    fn copy(&mut self, from: usize, to: usize, len: usize) -> Result<(), ModelError> {
        self.engine.copy(from, to, len)
    }
    fn prefill(&mut self, slot: usize, ids: &[u32]) -> Result<(), ModelError> {
        drop(self.gate.lock().unwrap());
        self.engine.prefill(slot, ids)
    }
    fn decode(&mut self, slot: usize, ids: &[u32]) -> Result<&[f32], ModelError> {
        drop(self.gate.lock().unwrap());
        self.engine.decode(slot, ids)
    }
    fn decode_each(
        &mut self,
        slot: usize,
        ids: &[u32],
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        drop(self.gate.lock().unwrap());
        self.engine.decode_each(slot, ids, visit)
    }
    fn decode_rows(&mut self, rows: &[NextPosition]) -> Result<&[f32], ModelError> {
        drop(self.gate.lock().unwrap());
        self.engine.decode_rows(rows)
    }
}

/// A server, which stops when it is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) service: Arc<Service>,
    /// Whoever holds it stops the model.
    pub(crate) gate: Arc<Mutex<()>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(slots: usize, max_queue: usize, chat: ChatTemplate) -> Running {
        let service = Service::new(model(chat), max_queue, slots, 1 << 20);
        Running::of(service, slots, Access::default(), DRAIN)
    }

    pub(crate) fn of(service: Service, slots: usize, access: Access, drain: Duration) -> Running {
        let server = Server::bind("127.0.0.1:0", limits(64, drain)).unwrap().with_access(access);
        let address = server.address();
        let service = Arc::new(service);
        let (stop, gate) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(())));
        let (of_thread, stopped, held) = (Arc::clone(&service), Arc::clone(&stop), Arc::clone(&gate));
        let thread = std::thread::spawn(move || {
            let mut engine = Gated { engine: engine(slots), gate: held };
            serve(server, &of_thread, &mut engine, &stopped, drain).unwrap();
        });
        Running { address, service, gate, stop, thread: Some(thread) }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn join(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
