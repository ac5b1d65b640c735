//! The scheduler on a model of plain arithmetic.

use crate::fake::{Alone, Ear, Fake, VOCABULARY, logits_after, tokenizer};
use bessemer_eval::generate::{ContextLimit, Finish, GenerateConfig, Generated, TextStream, generate};
use bessemer_eval::sampling::SamplingConfig;
use bessemer_serve::scheduler::{Scheduler, SequenceRequest};
use bessemer_serve::score::TokenScore;
use bessemer_tensor::rng::RngKey;
use std::ops::ControlFlow;
use std::sync::Arc;

fn request(prompt: Vec<u32>, max_tokens: u64) -> SequenceRequest {
    let generate = GenerateConfig {
        max_tokens,
        context_limit: ContextLimit::Stop,
        sampling: SamplingConfig {
            temperature: 1.0,
            top_p: 1.0,
            seed: prompt.len() as u64,
            ..SamplingConfig::default()
        },
        ..GenerateConfig::default()
    };
    SequenceRequest {
        model: 0,
        prompt: prompt.into(),
        prefix: 0,
        generate: generate.into(),
        sample: 0,
        score_prompt: false,
        scores: None,
        bias: [].into(),
    }
}

/// Tokens and text of a request that is alone.
fn alone(request: &SequenceRequest, capacity: usize) -> (Generated, String) {
    let tokenizer = tokenizer();
    let mut text = TextStream::new(&request.generate);
    let mut whole = String::new();
    let end = tokenizer.end_of_text();
    let mut generated = generate(
        &mut Alone::new(request.model, capacity),
        &request.prompt,
        end,
        &request.generate,
        request.sample,
        &mut |id| {
            let bytes = tokenizer.token_bytes(id).filter(|_| Some(id) != end).unwrap_or_default();
            whole.push_str(text.push(bytes));
            if text.ended() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        },
    )
    .unwrap();
    if text.ended() {
        generated.finish = Finish::StopString;
    }
    whole.push_str(text.finish());
    (generated, whole)
}

/// A request by its number: prompts of many lengths, all settings.
fn mixed(number: u64, capacity: usize) -> SequenceRequest {
    let words = RngKey::new(11, 0, "requests").block(number);
    let len = 1 + words[0] as usize % capacity;
    // Every other one begins as others do.
    let own = if number.is_multiple_of(2) { words[1] % 13 } else { 0 };
    let shared = (len as u32).saturating_sub(words[1] % 13);
    let token = |i: u32| (i * i * 37 + if i < shared { 0 } else { own }) % VOCABULARY as u32;
    let prompt = (0..len as u32).map(token).collect();
    let mut request = request(prompt, u64::from(words[2] % 40));
    request.model = (words[1] / 13 % 3) as usize;
    request.sample = u64::from(words[3] % 3);
    request.scores = (words[3].is_multiple_of(5)).then_some(2);
    request.score_prompt = words[3].is_multiple_of(10);
    let generate = Arc::make_mut(&mut request.generate);
    if words[2].is_multiple_of(3) {
        generate.sampling.temperature = 0.0;
    }
    if words[2].is_multiple_of(4) {
        generate.stop = vec!["a".into(), "\u{fffd}\u{fffd}".into()];
    }
    if words[2].is_multiple_of(5) {
        generate.sampling.frequency_penalty = 0.7;
        generate.stop_token_ids = vec![words[0] % VOCABULARY as u32, 97, 98];
        generate.min_tokens = u64::from(words[1] % 9).min(generate.max_tokens);
        generate.ignore_eos = words[1].is_multiple_of(2);
    }
    request
}

#[test]
fn every_text_is_the_one_that_it_is_alone_whatever_comes_and_goes() {
    let capacity = 50;
    for (slots, chunk) in [(1, 7), (4, 16), (9, 50)] {
        let (mut engine, mut scheduler) =
            (Fake::new(slots, capacity, chunk), Scheduler::new(tokenizer(), slots));
        let mut ears: Vec<(Vec<SequenceRequest>, Ear, bool)> = Vec::new();
        let mut number = 0;
        for step in 0.. {
            // A request now and then, of one to four sequences.
            if number < 120 && step % 3 == 0 {
                let count = 1 + number % 4;
                let requests: Vec<SequenceRequest> =
                    (0..count).map(|i| mixed(number + i, capacity)).collect();
                number += count;
                let ear = Ear::default();
                scheduler.push(requests.clone(), ear.clone());
                ears.push((requests, ear, false));
            }
            if step % 17 == 16 {
                // Some leave, whatever state they are in.
                let (_, ear, left) = &mut ears.iter_mut().rev().nth(step % 5).unwrap();
                ear.leave();
                *left = true;
            }
            scheduler.step(&mut engine);
            if scheduler.is_idle() && number >= 120 {
                break;
            }
        }
        let mut checked = 0;
        for (requests, ear, _) in ears.iter().filter(|e| !e.2) {
            for (i, request) in requests.iter().enumerate() {
                let (told, (wanted, text)) = (ear.of(i), alone(request, capacity));
                assert_eq!((&told.tokens, told.finish), (&wanted.tokens, Some(wanted.finish)), "{request:?}");
                assert_eq!(told.text, text);
                assert_eq!(told.scores.len(), if request.scores.is_some() { told.tokens.len() } else { 0 });
                checked += 1;
            }
        }
        assert!(checked > 60, "{checked}");
        if slots > 1 {
            assert!(engine.passes.contains(&slots), "all slots are used at once");
        }
    }
}

#[test]
fn a_request_of_many_prompts_does_not_keep_out_the_next_one() {
    let (mut engine, mut scheduler) = (Fake::new(2, 100, 100), Scheduler::new(tokenizer(), 2));
    let (many, one) = (Ear::default(), Ear::default());
    scheduler.push((0..500).map(|i| request(vec![i % 200], 5)).collect(), many.clone());
    scheduler.step(&mut engine);
    scheduler.push(vec![request(vec![1, 2], 5)], one.clone());
    let mut steps = 0;
    while one.of(0).finish.is_none() {
        scheduler.step(&mut engine);
        steps += 1;
        assert!(steps < 40, "the second request waits for the first");
    }
    assert!(many.told.lock().unwrap().len() < 20);
}

#[test]
fn a_long_prompt_stops_nobody() {
    let (mut engine, mut scheduler) = (Fake::new(3, 1000, 10), Scheduler::new(tokenizer(), 3));
    let (short, long) = (Ear::default(), Ear::default());
    let mut first = request(vec![3], 30);
    // No end of text.
    first.bias = [(tokenizer().end_of_text().unwrap(), -100.0)].into();
    scheduler.push(vec![first], short.clone());
    scheduler.step(&mut engine);
    scheduler.push(vec![request((0..500).map(|i| i % 250).collect(), 1)], long.clone());
    for step in 1..25 {
        let before = short.of(0).tokens.len();
        let did = scheduler.step(&mut engine);
        assert_eq!((did.prompt_tokens, short.of(0).tokens.len() - before), (10, 1), "step {step}");
    }
    // A second prompt has its turns beside the first.
    let other = Ear::default();
    scheduler.push(vec![request((0..15).collect(), 1)], other.clone());
    for _ in 0..4 {
        scheduler.step(&mut engine);
    }
    assert_eq!(other.of(0).tokens.len(), 1);
    assert!(long.of(0).tokens.is_empty());
}

#[test]
fn slots_of_those_who_left_are_free_at_once() {
    let (mut engine, mut scheduler) = (Fake::new(1, 100, 4), Scheduler::new(tokenizer(), 1));
    let (first, second, third) = (Ear::default(), Ear::default(), Ear::default());
    scheduler.push(vec![request((0..90).collect(), 9)], first.clone());
    scheduler.push(vec![request(vec![1], 9)], second.clone());
    scheduler.push(vec![request(vec![2], 1)], third.clone());
    scheduler.step(&mut engine);
    first.leave();
    second.leave();
    scheduler.step(&mut engine);
    assert_eq!(third.of(0).tokens.len(), 1);
    assert!(scheduler.is_idle());
    assert_eq!((first.of(0), second.of(0)), Default::default());
}

#[test]
fn prompts_are_scored_with_their_own_predecessors() {
    let prompt: Vec<u32> = (0..23).map(|i| (i * 11) % 250).collect();
    for (prefix, max_tokens) in [(0, 0), (1, 1), (1, 0)] {
        let (mut engine, mut scheduler) = (Fake::new(1, 100, 7), Scheduler::new(tokenizer(), 1));
        let ear = Ear::default();
        let mut request = request(prompt.clone(), max_tokens);
        (request.prefix, request.score_prompt, request.scores) = (prefix, true, Some(3));
        scheduler.push(vec![request], ear.clone());
        while !scheduler.is_idle() {
            scheduler.step(&mut engine);
        }
        let told = ear.of(0);
        let wanted: Vec<TokenScore> = (prefix..prompt.len())
            .map(|i| match i {
                0 => TokenScore::first(prompt[0]),
                _ => TokenScore::of(&logits_after(&prompt[..i]), prompt[i], 3, VOCABULARY),
            })
            .collect();
        assert_eq!(told.prompt_scores, wanted);
        assert_eq!((told.scores.len() as u64, told.finish), (max_tokens, Some(Finish::MaxTokens)));
    }
}

#[test]
fn failures_end_what_they_concern_and_nothing_else() {
    let (mut engine, mut scheduler) = (Fake::new(2, 100, 10), Scheduler::new(tokenizer(), 2));
    engine.poison = Some(77);
    let (good, bad, later) = (Ear::default(), Ear::default(), Ear::default());
    let mut fine = request(vec![5], 12);
    fine.bias = [(77, -100.0), (tokenizer().end_of_text().unwrap(), -100.0)].into();
    scheduler.push(vec![fine.clone()], good.clone());
    scheduler.push(vec![request(vec![1, 77], 3)], bad.clone());
    for _ in 0..15 {
        scheduler.step(&mut engine);
    }
    assert!(bad.of(0).failed.unwrap().contains("poison"));
    assert_eq!(good.of(0).finish, Some(Finish::MaxTokens));
    // A pass of several that fails ends all of them, and the scheduler goes on.
    let mut chooses = request(vec![6], 3);
    chooses.bias = [(77, 100.0)].into();
    scheduler.push(vec![chooses, fine.clone()], bad.clone());
    bad.told.lock().unwrap().clear();
    while !scheduler.is_idle() {
        scheduler.step(&mut engine);
    }
    assert!(bad.of(0).failed.is_some(), "{:?}", bad.of(0));
    scheduler.push(vec![fine.clone()], later.clone());
    scheduler.push(vec![fine], bad.clone());
    bad.told.lock().unwrap().clear();
    scheduler.step(&mut engine);
    scheduler.abort("stop");
    assert!(scheduler.is_idle() && later.of(0).failed.is_some() && bad.of(0).failed.is_some());
}

#[test]
fn a_prompt_that_a_slot_holds_is_brought_from_there() {
    let prompt = |len: u32, last: u32| (0..len).map(|i| i * 7 % 250).chain([last; 4]).collect::<Vec<u32>>();
    let (mut engine, mut scheduler) = (Fake::new(3, 200, 16), Scheduler::new(tokenizer(), 3));
    let mut run = |requests: Vec<SequenceRequest>| {
        let (ear, mut brought, mut cached) = (Ear::default(), 0, 0);
        let n = requests.len();
        scheduler.push(requests.clone(), ear.clone());
        while !scheduler.is_idle() {
            let step = scheduler.step(&mut engine);
            brought += step.prompt_tokens;
            cached += step.cached_tokens;
        }
        for (i, request) in requests.iter().enumerate() {
            assert_eq!(ear.of(i).tokens, alone(request, 200).0.tokens, "{request:?}");
        }
        assert_eq!(cached, (0..n).map(|i| ear.of(i).cached).sum::<usize>());
        (brought, cached)
    };
    assert_eq!(run(vec![request(prompt(100, 1), 5)]), (104, 0));
    // Another end: the beginning stays in the slot.
    assert_eq!(run(vec![request(prompt(100, 2), 5)]), (4, 100));
    // Three at once: one in the slot, two with a copy of it.
    assert_eq!(run((3..6).map(|last| request(prompt(100, last), 5)).collect()), (12, 300));
    // Three of a prompt that is not there go through once, piece by piece, but for their ends.
    let fresh = |last| request([vec![249; 60], vec![last; 4]].concat(), 5);
    assert_eq!(run((3..6).map(fresh).collect()), (64 + 2 * 4, 2 * 60));
    // A prompt whose scores are asked for goes through as a whole.
    let mut scored = request(prompt(100, 1), 5);
    (scored.score_prompt, scored.scores) = (true, Some(0));
    assert_eq!(run(vec![scored]), (104, 0));
    assert!(engine.copied >= 4, "{}", engine.copied);
    // A model whose numbers depend on the cuts.
    engine.free_piece = None;
    let ear = Ear::default();
    scheduler.push(vec![request(prompt(100, 1), 5)], ear.clone());
    while !scheduler.is_idle() {
        scheduler.step(&mut engine);
    }
    assert_eq!(ear.of(0).cached, 0);
}
