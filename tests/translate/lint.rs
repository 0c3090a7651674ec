//! Finds barriers and subgroup operations that not every lane of a workgroup reaches together. naga accepts them and
//! drivers hang on them or lie.
//!
//! A value is *split* if it may differ between lanes: it comes from a lane's own index, or was computed from or chosen by
//! such a value. Results of reductions and loads at equal addresses are not. Control flow is split below a split
//! condition, in a loop that some lanes leave earlier, and after a return that only some lanes take.

use naga::{Block, BuiltIn, Expression, Function, Handle, LocalVariable, Module, Statement, SubgroupOperation};
use std::collections::{HashMap, HashSet};

/// Says for each misplaced operation in which function it stands and what it is.
pub fn misplaced(module: &Module) -> Vec<String> {
    let mut lint = Lint {
        module,
        arguments: HashSet::new(),
        results: HashMap::new(),
        assumed: None,
        returns: false,
        found: Vec::new(),
    };
    // What a result depends on: callees come before their callers.
    for (handle, function) in module.functions.iter() {
        let [alone, given] = [false, true].map(|assumed| {
            lint.assumed = Some(assumed);
            lint.returns = false;
            lint.function(Some(handle), function);
            lint.returns
        });
        lint.results.insert(handle, (alone, given));
    }
    lint.assumed = None;
    lint.arguments.clear();
    // Callers decide about the arguments of functions that come before them, so: again until nothing changes.
    loop {
        let before = lint.arguments.len();
        lint.found.clear();
        for (handle, function) in module.functions.iter() {
            lint.function(Some(handle), function);
        }
        for entry in &module.entry_points {
            lint.function(None, &entry.function);
        }
        if before == lint.arguments.len() {
            return lint.found;
        }
    }
}

struct Lint<'a> {
    module: &'a Module,
    /// Arguments of functions that are split for some caller.
    arguments: HashSet<(Handle<Function>, usize)>,
    /// Whether the result of a function is split by itself, and whether it is for split arguments.
    results: HashMap<Handle<Function>, (bool, bool)>,
    /// What to assume of all arguments while finding that out.
    assumed: Option<bool>,
    /// Whether the function looked at returns something split.
    returns: bool,
    found: Vec<String>,
}

/// State of one function.
struct Scope<'a> {
    handle: Option<Handle<Function>>,
    function: &'a Function,
    locals: HashSet<Handle<LocalVariable>>,
    values: HashSet<Handle<Expression>>,
    /// Whether a split return has been passed.
    returned: bool,
}

/// How the lanes may part within a block.
#[derive(Clone, Copy, Default)]
struct Parting {
    breaks: bool,
    returns: bool,
}

impl<'a> Lint<'a> {
    fn function(&mut self, handle: Option<Handle<Function>>, function: &'a Function) {
        let mut scope = Scope { handle, function, locals: HashSet::new(), values: HashSet::new(), returned: false };
        loop {
            let before = (scope.locals.len(), scope.values.len());
            self.values(&mut scope);
            scope.returned = false;
            let found = self.found.len();
            self.block(&mut scope, &function.body, false);
            if before == (scope.locals.len(), scope.values.len()) {
                return;
            }
            self.found.truncate(found);
        }
    }

    /// Marks split expressions. Operands come before their users.
    fn values(&self, scope: &mut Scope<'a>) {
        for (handle, expression) in scope.function.expressions.iter() {
            let split = |operand: &Handle<Expression>| scope.values.contains(operand);
            use Expression as E;
            let is_split = match expression {
                E::Literal(_) | E::Constant(_) | E::Override(_) | E::ZeroValue(_) | E::GlobalVariable(_) => false,
                E::ArrayLength(_) | E::WorkGroupUniformLoadResult { .. } | E::SubgroupBallotResult => false,
                E::LocalVariable(local) => scope.locals.contains(local),
                E::FunctionArgument(index) => self.argument(scope, *index as usize),
                E::Compose { components, .. } => components.iter().any(split),
                E::Access { base, index } => split(base) || split(index),
                E::AccessIndex { base, .. } => split(base),
                E::Splat { value, .. } => split(value),
                E::Swizzle { vector, .. } => split(vector),
                E::Load { pointer } => split(pointer),
                E::Unary { expr, .. } | E::As { expr, .. } => split(expr),
                E::Binary { left, right, .. } => split(left) || split(right),
                E::Select { condition, accept, reject } => match scope.function.expressions[*condition] {
                    E::Literal(naga::Literal::Bool(chosen)) => split(if chosen { accept } else { reject }),
                    _ => [condition, accept, reject].into_iter().any(split),
                },
                E::Relational { argument, .. } => split(argument),
                E::Math { arg, arg1, arg2, arg3, .. } => {
                    split(arg) || [arg1, arg2, arg3].into_iter().flatten().any(split)
                }
                // Marked where the operation stands, if at all.
                E::SubgroupOperationResult { .. } | E::CallResult(_) => split(&handle),
                _ => true,
            };
            if is_split {
                scope.values.insert(handle);
            }
        }
    }

    fn argument(&self, scope: &Scope<'a>, index: usize) -> bool {
        match (scope.handle, &scope.function.arguments[index].binding) {
            (Some(function), _) => self.assumed.unwrap_or_else(|| self.arguments.contains(&(function, index))),
            (None, Some(naga::Binding::BuiltIn(builtin))) => !matches!(
                builtin,
                BuiltIn::WorkGroupId | BuiltIn::NumWorkGroups | BuiltIn::WorkGroupSize | BuiltIn::SubgroupSize
            ),
            (None, _) => true,
        }
    }

    // Guards would hide the effects of their conditions.
    #[allow(clippy::collapsible_match)]
    fn block(&mut self, scope: &mut Scope<'a>, block: &'a Block, split: bool) -> Parting {
        let mut parting = Parting::default();
        for statement in block {
            // Lanes that have left do not come back within this block.
            let split = split || scope.returned || parting.breaks;
            match statement {
                Statement::Block(inner) => join(&mut parting, self.block(scope, inner, split)),
                Statement::If { condition, accept, reject } => {
                    let split = split || scope.values.contains(condition);
                    join(&mut parting, self.block(scope, accept, split));
                    join(&mut parting, self.block(scope, reject, split));
                }
                Statement::Switch { selector, cases } => {
                    let split = split || scope.values.contains(selector);
                    for case in cases {
                        // A break leaves the switch only.
                        parting.returns |= self.block(scope, &case.body, split).returns;
                    }
                }
                Statement::Loop { body, continuing, break_if } => {
                    let late = break_if.is_some_and(|condition| scope.values.contains(&condition));
                    let found = self.found.len();
                    let first = self.loop_body(scope, body, continuing, split || late);
                    parting.returns |= first.returns;
                    if first.breaks && !split && !late {
                        // Some lanes leave early, so all of the loop is split; look at it again.
                        self.found.truncate(found);
                        self.loop_body(scope, body, continuing, true);
                    }
                }
                Statement::Break | Statement::Continue => parting.breaks |= split,
                Statement::Return { value } => {
                    let split_value = value.is_some_and(|value| scope.values.contains(&value));
                    self.returns |= split || split_value;
                    parting.returns |= split;
                }
                Statement::Store { pointer, value } => {
                    if split || scope.values.contains(value) || scope.values.contains(pointer) {
                        self.taint(scope, *pointer);
                    }
                }
                Statement::Call { function, arguments, result } => {
                    if self.call(scope, *function, arguments, split) {
                        scope.values.extend(result);
                    }
                }
                Statement::ControlBarrier(_) => self.demand(scope, split, "a barrier"),
                Statement::WorkGroupUniformLoad { .. } => self.demand(scope, split, "a uniform load"),
                Statement::SubgroupBallot { .. } => self.demand(scope, split, "a ballot"),
                Statement::SubgroupGather { result, .. } => {
                    scope.values.insert(*result);
                    self.demand(scope, split, "a subgroup gather");
                }
                Statement::SubgroupCollectiveOperation { op, collective_op, result, .. } => {
                    let equal = matches!(collective_op, naga::CollectiveOperation::Reduce);
                    let elect = matches!(op, SubgroupOperation::All | SubgroupOperation::Any);
                    if !equal && !elect {
                        scope.values.insert(*result);
                    }
                    self.demand(scope, split, "a subgroup operation");
                }
                _ => {}
            }
            scope.returned |= parting.returns;
        }
        parting
    }

    fn loop_body(&mut self, scope: &mut Scope<'a>, body: &'a Block, continuing: &'a Block, split: bool) -> Parting {
        let mut parting = self.block(scope, body, split);
        let last = self.block(scope, continuing, split || parting.breaks);
        join(&mut parting, last);
        parting
    }

    /// Whether the result is split.
    fn call(
        &mut self,
        scope: &mut Scope<'a>,
        callee: Handle<Function>,
        arguments: &[Handle<Expression>],
        split: bool,
    ) -> bool {
        let any = arguments.iter().any(|argument| scope.values.contains(argument));
        for (index, argument) in arguments.iter().enumerate() {
            if scope.values.contains(argument) {
                self.arguments.insert((callee, index));
            }
            // What a function writes through a pointer may depend on all it was given.
            if any || split {
                self.taint(scope, *argument);
            }
        }
        if contains_collective(self.module, &self.module.functions[callee].body) {
            let name = self.module.functions[callee].name.clone().unwrap_or_default();
            self.demand(scope, split, &format!("a call of {name}, which has a barrier or subgroup operation,"));
        }
        let (alone, given) = self.results[&callee];
        alone || given && any
    }

    /// Marks the local variable behind `pointer`, if it is one.
    fn taint(&self, scope: &mut Scope<'a>, pointer: Handle<Expression>) {
        let mut at = pointer;
        loop {
            match &scope.function.expressions[at] {
                Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => at = *base,
                Expression::LocalVariable(local) => {
                    scope.locals.insert(*local);
                    return;
                }
                _ => return,
            }
        }
    }

    fn demand(&mut self, scope: &Scope<'a>, split: bool, what: &str) {
        if split {
            let name = scope.function.name.as_deref().unwrap_or("main");
            self.found.push(format!("{what} in {name} is not reached by all lanes together"));
        }
    }
}

fn join(into: &mut Parting, other: Parting) {
    into.breaks |= other.breaks;
    into.returns |= other.returns;
}

fn contains_collective(module: &Module, block: &Block) -> bool {
    block.iter().any(|statement| match statement {
        Statement::ControlBarrier(_)
        | Statement::WorkGroupUniformLoad { .. }
        | Statement::SubgroupBallot { .. }
        | Statement::SubgroupGather { .. }
        | Statement::SubgroupCollectiveOperation { .. } => true,
        Statement::Block(inner) => contains_collective(module, inner),
        Statement::If { accept, reject, .. } => [accept, reject].iter().any(|block| contains_collective(module, block)),
        Statement::Switch { cases, .. } => cases.iter().any(|case| contains_collective(module, &case.body)),
        Statement::Loop { body, continuing, .. } => [body, continuing].iter().any(|b| contains_collective(module, b)),
        Statement::Call { function, .. } => contains_collective(module, &module.functions[*function].body),
        _ => false,
    })
}
