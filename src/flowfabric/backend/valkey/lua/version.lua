-- ff1_version: what is loaded, and what time it is.

ff.register('version', function()
  return LIBRARY_VERSION
end, { 'no-writes' })

ff.register('now', function(_, args)
  return ff.answer(ff.open(args), false)
end, { 'no-writes' })
