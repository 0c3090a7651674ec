# What people type. The work is in .ci/, so that continuous integration runs the same.

.DEFAULT_GOAL := help
.PHONY: help demo test test-gemma

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Install what is missing, fetch a small model once, and let it answer a question
	@.ci/demo

test: ## Install what is missing and run every check, on software Vulkan drivers where it can
	@.ci/test

test-gemma: ## Fetch Gemma 3 270M (its terms of use apply) and test the real file
	@.ci/test-gemma
