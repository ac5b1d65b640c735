//! A small untrained model behind a server on a free port.

use crate::fake::{VOCABULARY, tokenizer};
use bessemer_arch::{AdapterTarget, Adapters, Model as Arch, ModelConfig};
use bessemer_eval::generate::{CachedDecoder, GenerateConfig, GeneratedText, generate_text};
use bessemer_http::{Access, Server};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_runtime::{Cache, CacheShape, Decoder, ModelError, NextPosition, Purpose, Shape};
use bessemer_serve::chat::ChatTemplate;
use bessemer_serve::engine::{Engine, LOGIT_ROWS, ModelEngine};
use bessemer_serve::{Model, Service, limits, serve};
use bessemer_tensor::Backend;
use bessemer_tensor::rng::RngKey;
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

/// Model 0 is the base, 1 and 2 have adapters of other ranks and maps.
fn adapted(number: usize) -> Arch {
    let adapters = match number {
        0 => None,
        1 => Some(Adapters::default()),
        _ => Some(Adapters {
            rank: 3,
            alpha: 3.0,
            targets: vec![AdapterTarget::Qkv, AdapterTarget::Gate, AdapterTarget::Down],
            ..Adapters::default()
        }),
    };
    Arch { adapters, ..arch() }
}

const ALONE: Shape = Shape { sequences: 1, seq: 1, purpose: Purpose::Score };

/// Writes the adapters of model `number`, which would otherwise add nothing.
fn write_adapters(backend: &mut CpuBackend, decoder: &Decoder, number: usize) {
    for param in decoder.params().iter().filter(|param| param.spec.id.role().is_adapter()) {
        let mut values = vec![0.0; param.spec.len()];
        RngKey::new(number as u64, 0, &param.spec.name).fill_normal(0, 0.5, &mut values);
        backend.write_f32(param.value, &values).unwrap();
    }
}

/// A model in memory of its own.
fn decoder(number: usize) -> (CpuBackend, Decoder) {
    let mut backend = CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let decoder = Decoder::new(&mut backend, &adapted(number), ALONE).unwrap();
    decoder.init(&mut backend, 7).unwrap();
    write_adapters(&mut backend, &decoder, number);
    (backend, decoder)
}

/// The base and, after it, adapted models in its memory.
pub(crate) fn engine(slots: usize, models: usize) -> ModelEngine<CpuBackend> {
    let (mut backend, base) = decoder(0);
    let shape = CacheShape { logit_rows: LOGIT_ROWS, ..CacheShape::slots(slots, CONTEXT) };
    let cache = Cache::new(&mut backend, &base, shape).unwrap();
    let beside = (1..models).map(|number| {
        let model = adapted(number);
        let decoder = base.adapted(&mut backend, &model, &|_| false).unwrap();
        write_adapters(&mut backend, &decoder, number);
        let cache = cache.sharing(&mut backend, &decoder).unwrap();
        (decoder, cache)
    });
    let beside = beside.collect();
    ModelEngine::new(backend, (base, cache), beside)
}

/// A text as `bessemer generate` makes it.
pub(crate) fn generated(prompt: &str, config: &GenerateConfig) -> GeneratedText {
    generated_by(0, prompt, config)
}

/// A text of model `number`.
pub(crate) fn generated_by(number: usize, prompt: &str, config: &GenerateConfig) -> GeneratedText {
    let (mut backend, decoder) = decoder(number);
    let mut cache = Cache::new(&mut backend, &decoder, CacheShape::one(CONTEXT)).unwrap();
    let mut model = CachedDecoder::new(&decoder, &mut backend, &mut cache).unwrap();
    generate_text(&mut model, &tokenizer(), prompt, config, 0, &mut |_| ControlFlow::Continue(())).unwrap()
}

pub(crate) fn model(chat: ChatTemplate) -> Model {
    Model {
        name: "tiny".into(),
        tokenizer: tokenizer(),
        context: CONTEXT,
        chat,
        created: 1_700_000_000,
        parent: None,
    }
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
    fn begin(&mut self, slot: usize, model: usize, len: usize) {
        self.engine.begin(slot, model, len);
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
        let service = Service::new(model(chat), Vec::new(), max_queue, slots, 1 << 20);
        Running::of(service, slots, Access::default(), DRAIN)
    }

    pub(crate) fn of(service: Service, slots: usize, access: Access, drain: Duration) -> Running {
        let server = Server::bind("127.0.0.1:0", limits(64, drain)).unwrap().with_access(access);
        let address = server.address();
        let service = Arc::new(service);
        let (stop, gate) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(())));
        let (of_thread, stopped, held) = (Arc::clone(&service), Arc::clone(&stop), Arc::clone(&gate));
        let thread = std::thread::spawn(move || {
            let models = of_thread.models.len();
            let mut engine = Gated { engine: engine(slots, models), gate: held };
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
