# Lift-Splat with a Swin-T backbone. The profile gives every size; each is a key of its own.
model = dict(type='LSSSwin', profile='seed')
